import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { cpus, totalmem } from "node:os";

export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map((_, i) => (i === 0 ? "---" : "---:"))), ...rows.map(line)].join("\n");
}

/** Replaces what stands between `<!-- name -->` and `<!-- /name -->` in a file under docs/. */
export async function writeBetween(file: string, name: string, text: string): Promise<void> {
  const path = fileURLToPath(new URL(`../../docs/${file}`, import.meta.url));
  const [open, close] = [`<!-- ${name} -->`, `<!-- /${name} -->`];
  const before = await readFile(path, "utf8").catch(() => {
    throw new Error(`--write: docs/${file} does not exist; it needs the markers ${open} and ${close}`);
  });
  const from = before.indexOf(open);
  const to = before.indexOf(close);
  if (from < 0 || to < from) throw new Error(`--write: docs/${file} lacks the markers ${open} and ${close}`);
  await writeFile(path, `${before.slice(0, from + open.length)}\n${text}\n${before.slice(to)}`);
  console.log(`wrote docs/${file}, section ${name}`);
}

export function machine(): string {
  const cores = cpus();
  return `${cores.length} cores (${cores[0]?.model.trim() ?? "unknown"}), ${Math.round(totalmem() / 1024 ** 3)} GB, ${process.platform} ${process.arch}, Node ${process.versions.node}`;
}
