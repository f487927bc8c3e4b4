/** A worker whose model speaks: each piece of text is the time at which it was said. `DATABASE_URL`. */
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";
import { agent } from "../../../src/agents/agent.ts";
import { tool } from "../../../src/agents/tool.ts";
import type { Model } from "../../../src/engine/model-port.ts";
import { createCapstan } from "../../../src/main.ts";
import { createModelCatalogue } from "../../../src/providers/catalogue.ts";

const PIECES = 20;
const PIECE_MS = 25;

const model: Model = {
  name: "bench:speaker",
  structuredOutput: false,
  window: { tokens: undefined, source: "unknown" },
  async call(call, { onDelta, signal }) {
    const turn = call.messages.filter(({ role }) => role === "assistant").length + 1;
    let text = "";
    for (let n = 0; n < PIECES; n++) {
      const piece = `${Date.now()} `;
      text += piece;
      onDelta?.({ kind: "text", text: piece });
      await sleep(PIECE_MS, undefined, { signal });
    }
    const goesOn = turn < Number(process.env["BENCH_TURNS"]);
    return {
      kind: "responded",
      content: [{ type: "text", text }, ...(goesOn ? [{ type: "tool_call" as const, call_id: `c${turn}`, name: "look", input: {} }] : [])],
      finish: { reason: goesOn ? "tool_calls" : "stop" },
      usage: { input: 100, output: 20, scale: "provider" },
    };
  },
};
const look = tool({ name: "look", description: "Looks.", input: z.object({}), effect: "read", execute: () => "nothing new" });
const speaker = agent({ name: "speaker", model: model.name, instructions: "Speak.", tools: [look], warnTranscriptBytes: false });
const capstan = createCapstan({ agents: [speaker], models: createModelCatalogue({ models: { [model.name]: model } }), env: { ...process.env, CAPSTAN_LOG_LEVEL: "warn" } });
await capstan.startWorker();
process.on("disconnect", () => process.exit());
process.send?.({ ready: true });
