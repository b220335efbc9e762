"""`delayserver completion`: prints the script with which a shell completes commands, options and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "delayserver"
# The shell sets this variable to ask the program for completions.
VARIABLE = "_DELAYSERVER_COMPLETE"


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  echo 'eval "$(delayserver completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(delayserver completion zsh)"' >> ~/.zshrc     (after compinit)
    fish:  delayserver completion fish > ~/.config/fish/completions/delayserver.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None
    script = complete(context.find_root().command, {}, PROGRAM, VARIABLE)
    # Not `source()`: it starts bash to learn its version. A bash before 4.4 says so by itself (`complete -o nosort`).
    text = script.source_template % script.source_vars()
    # click splits a line at every comma, which cuts the help at its first one.
    click.echo(text.replace('string split ","', 'string split --max 1 ","'))
