"""`oncelog completion bash|zsh|fish`: prints the script that makes a shell complete commands, topics and groups."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from service.cli.root import cli


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what makes a shell complete oncelog's commands.

    \b
    oncelog completion bash > ~/.local/share/bash-completion/completions/oncelog
    oncelog completion zsh > "${fpath[1]}/_oncelog"
    oncelog completion fish > ~/.config/fish/completions/oncelog.fish

    Names of topics and groups are asked from the broker that ONCELOG_BOOTSTRAP names, or the one on this machine.
    """
    maker = get_completion_class(shell)
    assert maker is not None
    click.echo(maker(cli, {}, "oncelog", "_ONCELOG_COMPLETE").source())
