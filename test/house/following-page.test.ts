import { spawn } from "node:child_process";
import { join } from "node:path";
import { expect, it } from "vitest";
import { agent } from "../../src/agents/agent.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import { gatedStream } from "../client/gated-stream.ts";
import { openLab, until } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { readRoot, root } from "./sources.ts";

const database = await createTestDatabase();

it("docs/following.md shows examples/follow.ts, which prints an answer while it comes", async () => {
  const [, code] = /```ts\n([\s\S]*?)\n```/.exec(readRoot("docs/following.md")) ?? [];
  expect(code).toBe(
    readRoot("examples/follow.ts")
      .replace(/"\.\.\/src\/client\/index\.ts";.*/, '"capstan/client";')
      .trimEnd(),
  );
  const voice = gatedStream();
  const speaker = agent({ name: "speaker", model: "scripted:stream", instructions: "Speak." });
  await using lab = await openLab(database.url, { agents: [speaker], models: [scriptedModel([{ stream: voice }], { name: "scripted:stream" })] });
  const { id } = await lab.capstan.enqueue(speaker, "go");
  const child = spawn(process.execPath, [join(root, "examples/follow.ts"), id, "1"], { env: { ...process.env, DATABASE_URL: database.url }, stdio: ["ignore", "pipe", "inherit"] });
  let shown = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (shown += text));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  await until("a first piece", () => {
    voice.say("·");
    return shown.includes("·");
  });
  voice.say("So it ", "is.");
  await until("the text, before the response", () => shown.endsWith("So it is."));
  voice.end();
  expect(await ended).toBe(0);
  expect(shown).toMatch(/^\n\[2\] model\.requested\n·+So it is\.\n\[3\] model\.responded\n\n\[4\] run\.completed\n$/);
});
