// Keeps an open page up to date, and remembers light or dark. Without it every page works by itself.
"use strict";

const root = document.documentElement;
const theme = document.getElementById("theme");
const prefers = window.matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : prefers.matches;
}

function nameTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
}

const kept = localStorage.getItem("theme");
if (kept) root.dataset.theme = kept;
theme.hidden = false;
nameTheme();
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  nameTheme();
});

// A part in which somebody types or has something open stays as it is until he leaves it.
function isInUse(part) {
  return part.contains(document.activeElement) || part.querySelector("details[open]") !== null;
}

function take(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const part of fresh.querySelectorAll("[data-live][id]")) {
    if (part.id === "content") continue;
    const old = document.getElementById(part.id);
    if (old && old.outerHTML !== part.outerHTML && !isInUse(old)) old.replaceWith(document.adoptNode(part));
  }
}

const main = document.getElementById("content");
if ("live" in main.dataset && window.EventSource) {
  const dot = document.getElementById("live-dot");
  const text = document.getElementById("live-text");
  const whose = text.textContent;
  const url = new URL(location.href);
  url.searchParams.set("live", "1");
  const source = new EventSource(url);
  dot.hidden = false;
  source.onopen = () => {
    dot.className = "dot on";
    text.textContent = whose + ", live";
  };
  source.onerror = () => {
    dot.className = "dot off";
    text.textContent = whose + ", not reached";
  };
  source.onmessage = (event) => take(event.data);
  addEventListener("pagehide", () => source.close());
}
