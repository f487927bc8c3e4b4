import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { cpus, totalmem } from "node:os";

export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(" | ")} |`;
  return [line(head), line(head.map((_, i) => (i === 0 ? "---" : "---:"))), ...rows.map(line)].join("\n");
}

/** A place between `<!-- name -->` and `<!-- /name -->` in a file under docs/. Found before anything is measured: a missing marker must not cost half an hour. */
export interface MarkedPlace {
  write(text: string): Promise<void>;
}

export async function findMarkers(file: string, name: string): Promise<MarkedPlace> {
  const path = fileURLToPath(new URL(`../../docs/${file}`, import.meta.url));
  const [open, close] = [`<!-- ${name} -->`, `<!-- /${name} -->`];
  const split = async (): Promise<[string, string]> => {
    const text = await readFile(path, "utf8").catch(() => "");
    const from = text.indexOf(open);
    const to = text.indexOf(close);
    if (from < 0 || to < from) throw new Error(`--write: docs/${file} does not hold the markers ${open} and ${close}; add them where the table belongs`);
    return [text.slice(0, from + open.length), text.slice(to)];
  };
  await split();
  return {
    async write(text) {
      const [before, after] = await split();
      await writeFile(path, `${before}\n\n${text}\n\n${after}`);
      console.log(`wrote docs/${file}, section ${name}`);
    },
  };
}

export function machine(): string {
  const cores = cpus();
  return `${cores.length} cores (${cores[0]?.model.trim() ?? "unknown"}), ${Math.round(totalmem() / 1024 ** 3)} GB, ${process.platform} ${process.arch}, Node ${process.versions.node}`;
}
