/** Relative paths as they stand in reports: forward slashes, no I/O. */
import { posix } from "node:path";

export function joinPath(folder: string, name: string): string {
  return folder === "." ? name : `${folder}/${name}`;
}

/** The path that a reference in a file leads to; undefined when it leads out of the folder. */
export function resolveReference(file: string, target: string): string | undefined {
  const path = posix.join(posix.dirname(file), target).replace(/\/$/, "");
  return path === ".." || path.startsWith("../") ? undefined : path === "" ? "." : path;
}

const kinds: Readonly<Record<string, string>> = {
  ts: "TypeScript",
  tsx: "TypeScript",
  mts: "TypeScript",
  cts: "TypeScript",
  js: "JavaScript",
  jsx: "JavaScript",
  mjs: "JavaScript",
  cjs: "JavaScript",
  md: "Markdown",
  mdx: "Markdown",
  json: "JSON",
  jsonl: "JSON lines",
  ndjson: "JSON lines",
  yml: "YAML",
  yaml: "YAML",
  toml: "TOML",
  sql: "SQL",
  py: "Python",
  rs: "Rust",
  go: "Go",
  java: "Java",
  rb: "Ruby",
  php: "PHP",
  c: "C",
  h: "C",
  cpp: "C++",
  hpp: "C++",
  cs: "C#",
  sh: "shell",
  html: "HTML",
  css: "CSS",
  svg: "SVG",
  png: "image",
  jpg: "image",
  jpeg: "image",
  gif: "image",
  webp: "image",
  txt: "text",
};
const code = new Set(["TypeScript", "JavaScript", "Python", "Rust", "Go", "Java", "Ruby", "PHP", "C", "C++", "C#", "shell", "SQL", "CSS"]);

export function extensionOf(path: string): string {
  const name = path.slice(path.lastIndexOf("/") + 1);
  const dot = name.lastIndexOf(".");
  return dot <= 0 ? "" : name.slice(dot + 1).toLowerCase();
}

export function kindOf(path: string): string {
  const extension = extensionOf(path);
  if (extension === "") return "no extension";
  return Object.hasOwn(kinds, extension) ? (kinds[extension] as string) : `.${extension.slice(0, 20)}`;
}

export function isCode(path: string): boolean {
  return code.has(kindOf(path));
}
