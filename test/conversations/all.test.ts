/**
 * Every recorded conversation, turn by turn, through real workers, real Postgres and the vendors' real clients, against
 * a server on the loopback interface that speaks their protocols.
 */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { CanonicalCall } from "../../src/domain/call.ts";
import { createModelCatalogue } from "../../src/providers/catalogue.ts";
import { startModelServer, type ModelServer, type Protocol } from "../../src/testing/model-server/index.ts";
import { openLab, payloads, sha256Hex, typesOf, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";
import { drive, type Driven } from "./drive.ts";
import { airline, coding, journaled, recorded, replayOf, respondFrom, type Replay } from "./replay.ts";

const database = await createTestDatabase();
const isFull = process.env["CAPSTAN_CONVERSATIONS"] === "full";
const all = [...coding, ...airline];

/** The Responses API shares the engine with Chat Completions: without CAPSTAN_CONVERSATIONS=full a part of the recordings must do. */
const conversationsOf: Readonly<Record<Protocol, typeof all>> = {
  "openai-chat": all,
  anthropic: all,
  "openai-responses": isFull ? all : [...coding, ...airline.filter((_, i) => i % 6 === 0)],
};

describe.each(["openai-chat", "anthropic", "openai-responses"] as const)("recorded conversations over %s", (protocol) => {
  const replays: Replay[] = conversationsOf[protocol].map((conversation) => replayOf(conversation, protocol));
  let server: ModelServer;
  let lab: Lab;
  let driven: Driven[];
  let wireOf: (call: CanonicalCall) => Promise<{ sha256: string; client: string } | undefined>;

  beforeAll(async () => {
    server = await startModelServer({ respond: respondFrom(replays) });
    const catalogue = { env: { ANTHROPIC_API_KEY: "key-a", OPENAI_API_KEY: "key-o" }, baseUrls: { anthropic: server.anthropicBaseUrl, openai: server.openaiBaseUrl } };
    const models = createModelCatalogue(catalogue);
    wireOf = async (call) => await models.resolve(call.model, "default").wireSha256?.(call);
    lab = await openLab(database.url, { agents: replays.map((replay) => replay.agent), catalogue, settings: { slots: 40 } });
    driven = await drive(lab, replays, 240_000);
  }, 300_000);

  afterAll(async () => {
    await lab[Symbol.asyncDispose]();
    await server.close();
  });

  it("are taken by the vendor: no request broke its rules", () => {
    expect(server.refused).toEqual([]);
    expect(server.requests.length).toBeGreaterThanOrEqual(replays.reduce((sum, replay) => sum + replay.script.answers, 0));
  });

  it("stand in Postgres as they were recorded: texts, calls, results", async () => {
    for (const { replay, runId } of driven) expect(journaled(await lab.events(runId)), replay.conversation.id).toEqual(recorded(replay.conversation));
  });

  it("needed no second try and no correction", async () => {
    const odd = ["model.failed", "model.corrected", "tool.failed", "tool.interrupted"];
    for (const { replay, runId } of driven)
      expect(
        typesOf(await lab.events(runId)).filter((type) => odd.includes(type)),
        replay.conversation.id,
      ).toEqual([]);
  });

  it("give every request again from Postgres: the canonical call, and the very bytes that the server received", async () => {
    const received = Map.groupBy(server.requests, (request) => String(request.body["model"]));
    for (const { replay, runId } of driven) {
      const { id } = replay.conversation;
      const sent = (received.get(replay.wireModel) ?? []).map((request) => sha256Hex(request.raw));
      const evidence = payloads(await lab.events(runId), "model.responded").map((payload) => payload.wire.sha256 as string);
      expect(evidence, `${id}: evidence in the journal against the server's own log`).toEqual(sent);
      const rebuilt: CanonicalCall[] = [];
      const report = await lab.intact(runId, { wire: wireOf, onRequest: (call) => void rebuilt.push(call) });
      expect(report, id).toMatchObject({ ok: true, requests: sent.length, wireCompared: sent.length });
      const last = rebuilt.at(-1) as CanonicalCall;
      expect((await wireOf(last))?.sha256, id).toBe(sent.at(-1));
    }
  }, 120_000);
});

it("recordings repeat call ids within a conversation, which is what makes them hard", () => {
  const repeating = airline.filter(({ messages }) => {
    const ids = messages.flatMap((message) => (message.tool_calls ?? []).map((call) => call.id));
    return new Set(ids).size < ids.length;
  });
  expect(repeating.length).toBeGreaterThan(10);
});
