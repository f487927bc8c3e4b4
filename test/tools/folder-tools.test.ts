import { execFileSync } from "node:child_process";
import { mkdir, readdir, readFile, symlink, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { folderTools } from "../../src/tools/folder-tools.ts";
import { call as callTool, makeFolder } from "./support.ts";

const outer = await makeFolder();
const root = join(outer, "root");
const reportsDir = join(outer, "reports");
const tools = folderTools({ root, reportsDir });
const call = (name: string, input: object, context: object = {}): Promise<never> => callTool(tools, name, input, context);

beforeAll(async () => {
  await mkdir(join(root, "docs", "deep"), { recursive: true });
  await mkdir(join(root, "node_modules", "x"), { recursive: true });
  await writeFile(join(outer, "secret.txt"), "outside\n");
  await writeFile(join(outer, "root-sibling.txt"), "outside\n");
  await writeFile(join(root, "a.ts"), "one\ntwo TODO later\r\nthree\n");
  await writeFile(join(root, "docs", "deep", "b.md"), "# b\nno end of line");
  await writeFile(join(root, "docs", "größe 文件.md"), "Ünïcode TODO\n");
  await writeFile(join(root, "node_modules", "x", "c.js"), "TODO not ours\n");
  await writeFile(join(root, "bin"), Buffer.from([1, 2, 0, 3]));
  await writeFile(join(root, "late-nul"), `${"a".repeat(20_000)}\u0000`);
  await writeFile(join(root, "latin1"), Buffer.from([0x67, 0x72, 0xfc, 0xdf, 0x65, 0x0a]));
  await writeFile(join(root, "empty"), "");
  await writeFile(join(root, "huge"), "");
  // Sparse: costs no disk.
  await truncate(join(root, "huge"), 9 * 1024 * 1024);
  await symlink("../secret.txt", join(root, "link-out"));
  await symlink(outer, join(root, "folder-out"));
  await symlink("a.ts", join(root, "link-in"));
  await symlink("loop", join(root, "loop"));
  execFileSync("mkfifo", [join(root, "pipe")]);
});

describe("no path leads out of the folder", () => {
  test.each([
    "../secret.txt",
    "docs/../../secret.txt",
    "docs/../../../etc/passwd",
    "/etc/passwd",
    "../root-sibling.txt",
    "..",
    "link-out",
    "folder-out/secret.txt",
    "folder-out",
    "docs/../link-out",
  ])("%s", async (path) => {
    await expect(call("read_file", { path })).rejects.toMatchObject({ code: "PATH_OUTSIDE_ROOT" });
    await expect(call("list_folder", { path })).rejects.toMatchObject({ code: "PATH_OUTSIDE_ROOT" });
    expect(await call("file_facts", { paths: [path] })).toMatchObject({ files: [], problems: [{ path, code: "PATH_OUTSIDE_ROOT" }] });
    expect(await call("search_text", { paths: [path], any_of: ["outside", "root:"] })).toMatchObject({ hits: [], problems: [{ code: "PATH_OUTSIDE_ROOT" }] });
  });

  test("a search below the root follows no links", async () => {
    expect(await call("search_text", { any_of: ["outside"] })).toMatchObject({ hits: [] });
  });

  test("a name that only begins with two dots is inside", async () => {
    await writeFile(join(root, "..odd"), "odd\n");
    expect(await call("read_file", { path: "..odd" })).toMatchObject({ text: "odd" });
  });
});

describe("what cannot be read is refused with its reason", () => {
  test.each([
    ["a\u0000b", "PATH_INVALID"],
    ["x".repeat(5_000), "PATH_INVALID"],
    ["gone.ts", "PATH_NOT_FOUND"],
    ["a.ts/below", "PATH_NOT_FOUND"],
    ["docs", "PATH_NOT_A_FILE"],
    ["pipe", "PATH_NOT_A_FILE"],
    ["loop", "FILE_UNREADABLE"],
    ["bin", "FILE_BINARY"],
    ["late-nul", "FILE_BINARY"],
    ["huge", "FILE_TOO_LARGE"],
  ])("%j as a file: %s", async (path, code) => {
    await expect(call("read_file", { path })).rejects.toMatchObject({ code });
  });

  test("a file is not a folder", async () => {
    await expect(call("list_folder", { path: "a.ts" })).rejects.toMatchObject({ code: "PATH_NOT_A_FOLDER" });
  });

  test("a line behind the end names the length", async () => {
    await expect(call("read_file", { path: "a.ts", from_line: 9 })).rejects.toMatchObject({ code: "FILE_SHORTER", message: expect.stringContaining("3 lines") });
  });

  test("a root that is not there says so with the first call", async () => {
    await expect(callTool(folderTools({ root: join(outer, "nowhere") }), "list_folder", {})).rejects.toMatchObject({ code: "PATH_NOT_FOUND" });
  });
});

describe("read_file", () => {
  test("gives lines without their ends and says where to go on", async () => {
    expect(await call("read_file", { path: "a.ts", max_lines: 2 })).toEqual({ path: "a.ts", from_line: 1, to_line: 2, total_lines: 3, text: "one\ntwo TODO later", next_line: 3 });
    expect(await call("read_file", { path: "./docs/../a.ts", from_line: 3 })).toEqual({ path: "a.ts", from_line: 3, to_line: 3, total_lines: 3, text: "three" });
    expect(await call("read_file", { path: "docs/deep/b.md" })).toMatchObject({ total_lines: 2, text: "# b\nno end of line" });
  });

  test("reads names beyond ASCII, links within the folder, empty files, and text that is no UTF-8", async () => {
    expect(await call("read_file", { path: "docs/größe 文件.md" })).toMatchObject({ text: "Ünïcode TODO" });
    expect(await call("read_file", { path: "link-in" })).toMatchObject({ total_lines: 3 });
    expect(await call("read_file", { path: "empty" })).toMatchObject({ total_lines: 0, text: "" });
    expect(await call("read_file", { path: "latin1" })).toMatchObject({ text: "gr\uFFFD\uFFFDe", invalid_utf8: true });
  });

  test("stays far below what fits into a result, and still goes forward", async () => {
    await writeFile(join(root, "wide"), `${"x".repeat(100_000)}\n`.repeat(30));
    const first: { text: string; to_line: number; next_line: number; clipped_lines: number } = await call("read_file", { path: "wide", max_lines: 2_000 });
    expect(first.text.length).toBeLessThan(64 * 1024);
    expect(first).toMatchObject({ clipped_lines: first.to_line, next_line: first.to_line + 1 });
    expect(first.text).toContain("… (100000 characters)");
  });
});

describe("list_folder", () => {
  test("sorts by name, marks links and skipped folders, and goes page by page", async () => {
    const all: { entries: { name: string; kind: string; skipped?: boolean }[]; total: number } = await call("list_folder", {});
    expect(all.entries.map(({ name }) => name)).toEqual(all.entries.map(({ name }) => name).toSorted());
    expect(all.entries).toContainEqual({ name: "a.ts", kind: "file", size_bytes: 26 });
    expect(all.entries).toContainEqual({ name: "node_modules", kind: "folder", skipped: true });
    expect(all.entries).toContainEqual({ name: "link-out", kind: "link" });
    expect(all.entries).toContainEqual({ name: "pipe", kind: "other" });
    const paged: unknown[] = [];
    for (let offset: number | undefined = 0; offset !== undefined;) {
      const page: { entries: unknown[]; next_offset?: number } = await call("list_folder", { offset, limit: 4 });
      paged.push(...page.entries);
      offset = page.next_offset;
    }
    expect(paged).toEqual(all.entries);
  });
});

describe("search_text", () => {
  test("finds literal text with file and line, and passes over skipped folders unless they are named", async () => {
    expect(await call("search_text", { any_of: ["TODO"] })).toMatchObject({
      hits: [
        { path: "a.ts", line: 2, found: "TODO", text: "two TODO later" },
        { path: "docs/größe 文件.md", line: 1, found: "TODO" },
      ],
    });
    expect(await call("search_text", { any_of: ["TODO"], paths: ["node_modules"] })).toMatchObject({ hits: [{ path: "node_modules/x/c.js" }] });
  });

  test("whole words, any case, and what looks like a pattern is taken literally", async () => {
    await writeFile(join(root, "words"), "methodology\nTodoist\na todo.\n(a+)+$\n");
    const found = async (input: object): Promise<number[]> =>
      ((await call("search_text", { paths: ["words"], ...input })) as { hits: { line: number }[] }).hits.map(({ line }) => line);
    expect(await found({ any_of: ["todo"], whole_word: true })).toEqual([3]);
    expect(await found({ any_of: ["TODO"], ignore_case: true })).toEqual([2, 3]);
    expect(await found({ any_of: ["TODO"], ignore_case: true, whole_word: true })).toEqual([3]);
    expect(await found({ any_of: ["(a+)+$"] })).toEqual([4]);
  });

  test("says that there was more, counts what it passed over, and names paths that are not there", async () => {
    await writeFile(join(root, "many"), "hit\n".repeat(50));
    expect(await call("search_text", { any_of: ["hit"], paths: ["many", "a.ts"], max_hits: 10 })).toMatchObject({ hits: { length: 10 }, truncated: true });
    expect(await call("search_text", { any_of: ["hit"], paths: ["many"], max_hits: 50 })).not.toHaveProperty("truncated");
    expect(await call("search_text", { any_of: ["x"], paths: ["bin", "huge", "gone"] })).toEqual({
      hits: [],
      files_searched: 0,
      files_passed_over: 2,
      problems: [expect.objectContaining({ path: "gone", code: "PATH_NOT_FOUND" })],
    });
  });

  test("shows the place where it was found in a long line", async () => {
    await writeFile(join(root, "long"), `${"x".repeat(5_000)}needle${"y".repeat(5_000)}\n`);
    const { hits }: { hits: { text: string }[] } = await call("search_text", { any_of: ["needle"], paths: ["long"] });
    expect(hits[0]?.text).toContain("needle");
    expect(hits[0]?.text.length).toBeLessThan(300);
  });

  test("stops when its run is stopped", async () => {
    await expect(call("search_text", { any_of: ["x"] }, { signal: AbortSignal.abort(new Error("stopped")) })).rejects.toThrow("stopped");
  });
});

describe("file_facts", () => {
  test("counts lines and bytes, tells binary from text, gives equal digests for equal contents", async () => {
    await writeFile(join(root, "copy.ts"), "one\ntwo TODO later\r\nthree\n");
    const { files }: { files: { path: string; digest: string }[] } = await call("file_facts", { paths: ["a.ts", "copy.ts", "docs/deep/b.md", "bin", "empty", "docs"] });
    expect(files).toMatchObject([
      { path: "a.ts", kind: "text", size_bytes: 26, lines: 3, longest_line: { line: 2, bytes: 15 } },
      { path: "copy.ts" },
      { path: "docs/deep/b.md", lines: 2, longest_line: { line: 2, bytes: 14 } },
      { path: "bin", kind: "binary", size_bytes: 4 },
      { path: "empty", kind: "text", lines: 0 },
      { path: "docs", kind: "folder" },
    ]);
    expect(files[0]?.digest).toBe(files[1]?.digest);
    expect(files[0]?.digest).not.toBe(files[2]?.digest);
  });

  test("measures files that are too large to read, in chunks", async () => {
    await writeFile(join(root, "lines"), `${"z".repeat(400_000)}\nshort\n${"w".repeat(300_000)}`);
    expect(await call("file_facts", { paths: ["huge", "lines"] })).toMatchObject({
      files: [
        { kind: "binary", size_bytes: 9 * 1024 * 1024 },
        { lines: 3, longest_line: { line: 1, bytes: 400_000 } },
      ],
    });
  });
});

describe("reports", () => {
  test("are saved once per run, whole, outside of the folder that is read, and can be looked up", async () => {
    expect(await call("check_report", {})).toEqual({ exists: false });
    const saved: { file: string; size_bytes: number; sha256: string } = await call("save_report", { markdown: "# Größe\n" });
    expect(saved).toMatchObject({ size_bytes: 10, sha256: expect.stringMatching(/^[0-9a-f]{64}$/) });
    expect(await call("check_report", {})).toEqual({ exists: true, ...saved });
    await call("save_report", { markdown: "second" }, { callId: "c2" });
    expect(await readdir(reportsDir)).toEqual(["01a22d45-af5d-7604-8cb9-ef7899cf15a9.md"]);
    expect(await readFile(join(reportsDir, "01a22d45-af5d-7604-8cb9-ef7899cf15a9.md"), "utf8")).toBe("second");
  });

  test("saving has a side effect and is declared so; everything else only reads", () => {
    expect(Object.fromEntries(tools.map(({ definition }) => [definition.name, definition.effect]))).toEqual({
      list_folder: "read",
      read_file: "read",
      search_text: "read",
      file_facts: "read",
      save_report: "once",
      check_report: "read",
    });
  });
});
