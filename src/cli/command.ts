/** How every command is declared: `--json`, examples, and an action that gets an Output. */
import type { Command } from "commander";
import { exitCodesHelp } from "./exit.ts";
import { Output } from "./output.ts";

export interface CommandTexts {
  readonly summary: string;
  readonly description?: string;
  /** Without the leading `capstan`, unless the line begins with something else; a text after `#` explains. */
  readonly examples: readonly string[];
}

/** `usage` is commander's: the name and its arguments. */
export function addCommand(parent: Command, usage: string, { summary, description, examples }: CommandTexts): Command {
  const [first = ""] = (parent.parent === null ? usage : parent.name()).split(" ");
  const line = (example: string): string => (example.split(" ")[0] === first ? `capstan ${example}` : example);
  return parent
    .command(usage)
    .summary(summary)
    .description(description ?? sentence(summary))
    .option("--json", "write JSON to standard output, everything else to standard error")
    .addHelpText("after", `\nExamples:\n${examples.map((example) => `  $ ${line(example)}`).join("\n")}\n\n${exitCodesHelp}`);
}

/** A group shows its commands when none is given. */
export function addGroup(parent: Command, name: string, summary: string): Command {
  return parent.command(name).summary(summary).description(sentence(summary));
}

function sentence(summary: string): string {
  return `${summary.charAt(0).toUpperCase()}${summary.slice(1)}.`;
}

/** Wraps an action: commander hands over arguments, options and the command; what it gives is the exit code. */
export function action<Args extends unknown[]>(run: (out: Output, ...args: Args) => Promise<number>): (...args: [...Args, Command]) => Promise<void> {
  return async (...given) => {
    const command = given.at(-1) as Command;
    const out = new Output({ isJson: command.opts<{ json?: boolean }>().json === true });
    process.exitCode = await run(out, ...(given.slice(0, -1) as Args));
  };
}
