"""`make transcripts`: write the answers in every transcript anew."""

from tests.transcripts.runner import replay, transcripts


def main() -> None:
    for path in transcripts():
        told = replay(path)
        if told != path.read_text():
            path.write_text(told)
            print(f"rewritten: {path.name}")


if __name__ == "__main__":
    main()
