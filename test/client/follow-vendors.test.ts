/** Live text of real protocols: a vendor's server streams, a worker works, a follower reads. */
import { expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { tool } from "../../src/agents/tool.ts";
import type { RunDelta } from "../../src/domain/delta.ts";
import { startModelServer } from "../../src/testing/model-server/index.ts";
import { openLab, until } from "../engine/harness.ts";
import { MODELS, PROTOCOLS } from "../providers/support.ts";
import { createTestDatabase } from "../support/database.ts";
import { deltasOf, expectInOrder, follower } from "./follower.ts";

const database = await createTestDatabase();

/** As a vendor is: some time between the pieces. */
const paced: typeof fetch = async (url, init) => {
  const response = await fetch(url, init);
  const pace = new TransformStream<Uint8Array, Uint8Array>({
    async transform(chunk, controller) {
      const size = Math.ceil(chunk.byteLength / 5);
      for (let at = 0; at < chunk.byteLength; at += size) {
        controller.enqueue(chunk.subarray(at, at + size));
        await new Promise((resolve) => setTimeout(resolve, 15));
      }
    },
  });
  return new Response(response.body?.pipeThrough(pace) ?? null, { status: response.status, headers: response.headers });
};

it.each(PROTOCOLS)("over %s: text and arguments as they come are those of the response", async (protocol) => {
  let isHeard = false;
  let asked = 0;
  await using server = await startModelServer({
    respond() {
      // One more turn until the worker knows of the follower: then the answers that are looked at.
      if (!isHeard) return { text: "Is anybody there?", toolCalls: [{ name: "weather", arguments: { city: "Oslo" } }] };
      if (++asked === 1) return { text: "Let me look – ein Moment 👀.", toolCalls: [{ name: "weather", arguments: { city: "Tromsø, in the far north" } }], chunkChars: 4 };
      return { text: "It is cold.", chunkChars: 2 };
    },
  });
  const weather = tool({ name: "weather", description: "The weather", input: z.object({ city: z.string() }), effect: "read", execute: () => Promise.resolve("cold") });
  const forecaster = agent({ name: "forecaster", model: MODELS[protocol], instructions: "Be brief.", tools: [weather] });
  await using lab = await openLab(database.url, {
    agents: [forecaster],
    catalogue: {
      env: { ANTHROPIC_API_KEY: "a", OPENAI_API_KEY: "o" },
      baseUrls: { anthropic: server.anthropicBaseUrl, openai: server.openaiBaseUrl },
      fetch: paced,
    },
  });
  const { id } = await lab.capstan.enqueue(forecaster, "Tromsø?");
  const reader = follower(lab.capstan.run(id));
  await until("some text", () => reader.text() !== "");
  isHeard = true;
  await reader.ended;
  expectInOrder(reader.items);
  const last = Math.max(...deltasOf(reader.items).map(({ turn }) => turn));
  const heard = (turn: number, kind: RunDelta["kind"]): RunDelta[] => deltasOf(reader.items).filter((delta) => delta.turn === turn && delta.kind === kind);
  const textOf = (deltas: readonly RunDelta[]): string => deltas.map(({ text }) => text).join("");
  expect(textOf(heard(last - 1, "text"))).toBe("Let me look – ein Moment 👀.");
  expect(JSON.parse(textOf(heard(last - 1, "tool_arguments")))).toEqual({ city: "Tromsø, in the far north" });
  expect(heard(last - 1, "tool_arguments")[0]).toMatchObject({ index: 0, name: "weather" });
  expect(textOf(heard(last, "text"))).toBe("It is cold.");
  await lab.intact(id);
});
