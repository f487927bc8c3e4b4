import { readdir, stat } from "node:fs/promises";
import { posix } from "node:path";
import { z } from "zod";
import { tool, type Tool } from "../agents/tool.ts";
import type { ConfinedFolder } from "./confined-folder.ts";
import { fromSystem } from "./errors.ts";
import { problemOf, type PathProblem } from "./file-facts.ts";
import { readTextFile, type TextFile } from "./text-file.ts";

const MAX_FILES = 5_000;
const MAX_HITS = 500;
const MAX_PROBLEMS = 20;
/** Shown of a line, around the place where the text was found. */
const EXCERPT_CHARS = 240;

export interface SearchHit {
  readonly path: string;
  readonly line: number;
  readonly found: string;
  readonly text: string;
}

interface Query {
  readonly any_of: readonly string[];
  readonly ignore_case: boolean;
  readonly whole_word: boolean;
}

/**
 * Searches for literal texts, not for patterns: a pattern written by a model can take exponential time, and the thread
 * that runs it beats no heart meanwhile, which would cost the worker all of its runs.
 */
export function searchTextTool(folder: ConfinedFolder, skips: ReadonlySet<string>): Tool {
  return tool({
    name: "search_text",
    description: `Finds lines that hold any of the given literal texts, in files and below folders. At most ${MAX_HITS} hits and ${MAX_FILES} files a call; "truncated" says that there was more. Binary and very large files are passed over and counted.`,
    input: z.object({
      any_of: z.array(z.string().min(1).max(200)).min(1).max(20).describe("literal texts, not patterns"),
      paths: z.array(z.string()).min(1).max(200).default(["."]).describe("files or folders, relative to the root folder"),
      ignore_case: z.boolean().default(false),
      whole_word: z.boolean().default(false),
      max_hits: z.int().min(1).max(MAX_HITS).default(100),
    }),
    effect: "read",
    timeoutMs: 120_000,
    async execute({ paths, max_hits, ...query }, { signal }) {
      const hits: SearchHit[] = [];
      const problems: PathProblem[] = [];
      let searched = 0;
      let passedOver = 0;
      let truncated = false;
      for await (const found of filesBelow(folder, paths, skips)) {
        signal.throwIfAborted();
        if (searched + passedOver >= MAX_FILES || hits.length >= max_hits) {
          truncated = true;
          break;
        }
        if ("code" in found) {
          if (problems.length < MAX_PROBLEMS) problems.push(found);
          continue;
        }
        let file: TextFile;
        try {
          file = await readTextFile(folder, found.path);
        } catch (error) {
          problemOf(error, found.path);
          passedOver++;
          continue;
        }
        searched++;
        for (const hit of hitsIn(file, query)) {
          if (hits.length === max_hits) {
            truncated = true;
            break;
          }
          hits.push(hit);
        }
      }
      return { hits, files_searched: searched, files_passed_over: passedOver, ...(problems.length > 0 ? { problems } : {}), ...(truncated ? { truncated: true } : {}) };
    },
  });
}

function* hitsIn(file: TextFile, { any_of, ignore_case, whole_word }: Query): Generator<SearchHit> {
  const wanted = any_of.map((text) => ({ text, compared: ignore_case ? text.toLowerCase() : text }));
  for (const [i, line] of file.lines.entries()) {
    const compared = ignore_case ? line.toLowerCase() : line;
    for (const { text, compared: needle } of wanted) {
      const at = indexOfText(compared, needle, whole_word);
      if (at < 0) continue;
      yield { path: file.path, line: i + 1, found: text, text: excerptAround(line, at) };
      break;
    }
  }
}

function indexOfText(line: string, needle: string, wholeWord: boolean): number {
  for (let at = line.indexOf(needle); at >= 0; at = line.indexOf(needle, at + 1)) {
    if (!wholeWord || (!isWordChar(line[at - 1]) && !isWordChar(line[at + needle.length]))) return at;
  }
  return -1;
}

function isWordChar(char: string | undefined): boolean {
  return char !== undefined && /[\p{L}\p{N}_]/u.test(char);
}

function excerptAround(line: string, at: number): string {
  if (line.length <= EXCERPT_CHARS) return line;
  const from = Math.max(0, Math.min(at - EXCERPT_CHARS / 4, line.length - EXCERPT_CHARS));
  const cut = line.slice(from, from + EXCERPT_CHARS).toWellFormed();
  return `${from > 0 ? "…" : ""}${cut}${from + EXCERPT_CHARS < line.length ? "…" : ""}`;
}

/** Regular files in a fixed order; links are not followed; folders in `skips` only when they are named themselves. */
async function* filesBelow(folder: ConfinedFolder, paths: readonly string[], skips: ReadonlySet<string>): AsyncGenerator<{ readonly path: string } | PathProblem> {
  const open = paths.toReversed();
  for (let path = open.pop(); path !== undefined; path = open.pop()) {
    try {
      const { absolute, shown } = await folder.locate(path);
      const facts = await stat(absolute);
      if (facts.isFile()) yield { path: shown };
      if (!facts.isDirectory()) continue;
      const entries = await readdir(absolute, { withFileTypes: true });
      entries.sort((a, b) => (a.name < b.name ? 1 : a.name > b.name ? -1 : 0));
      for (const entry of entries) {
        if (entry.isFile() || (entry.isDirectory() && !skips.has(entry.name))) open.push(posix.join(shown, entry.name));
      }
    } catch (error) {
      yield problemOf(fromSystem(error, path), path);
    }
  }
}
