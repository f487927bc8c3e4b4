/** Planted secrets go through a real worker by every way in, and are then looked for everywhere. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { z } from "zod";
import { agent } from "../../src/agents/agent.ts";
import { later } from "../../src/agents/deferred.ts";
import { tool } from "../../src/agents/tool.ts";
import { createClient } from "../../src/client/client.ts";
import { scriptedModel } from "../../src/testing/scripted-model.ts";
import type { EngineSpan, Tracing } from "../../src/engine/ports.ts";
import { collect, openLab, payloads, until, type Lab } from "../engine/harness.ts";
import { createTestDatabase } from "../support/database.ts";

const database = await createTestDatabase();
/** Each is planted at one place, so that what is found says where it came through. */
const planted = new Map<string, string>();
const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
/** A key of a vendor's form that no other place has. */
function key(place: string): string {
  const n = planted.size;
  const secret = `AKIA${letters[n % 26]}${letters[(n * 7) % 26]}QWERTZUIOPASD${String(n % 10)}`.slice(0, 20);
  planted.set(secret, place);
  return secret;
}
function number(place: string): string {
  const n = planted.size;
  const digits = `411111111111${String(n).padStart(3, "0")}`;
  const sum = Array.from(digits)
    .toReversed()
    .reduce((all, digit, i) => all + (i % 2 === 0 ? (Number(digit) * 2 > 9 ? Number(digit) * 2 - 9 : Number(digit) * 2) : Number(digit)), 0);
  const secret = `${digits}${(10 - (sum % 10)) % 10}`;
  planted.set(secret, place);
  return secret;
}
const handedOut = "correct-horse-battery-staple";
planted.set(handedOut, "ctx.secret");
planted.set(Buffer.from(handedOut).toString("base64"), "ctx.secret in base64");
const customer = "CUST-0042";
planted.set(customer, "a pattern of one's own");
const codename = "Project Nightingale";
planted.set(codename, "the hook's");

const said = {
  text: key("model text"),
  reasoning: key("model reasoning"),
  argument: key("tool arguments"),
  written: key("tool arguments as written"),
  failure: key("a vendor's error"),
  result: key("tool result"),
  member: key("a member's name in a tool result"),
  card: number("a number in a tool result"),
  thrown: key("a tool's error"),
  cause: key("a tool error's cause"),
  file: key("a file that a tool saved"),
  big: key("a result that went to a blob"),
  logged: key("a tool's log line"),
  question: key("what a tool waits with"),
};
const inputs = {
  client: { note: `mind ${key("input by TypeScript")} of ${customer} in ${codename}`, card: Number(number("input's number by TypeScript")) },
  sql: { note: `mind ${key("input by SQL")} of ${customer}`, card: Number(number("input's number by SQL")) },
  mail: "write to grace.hopper@navy.example",
  meta: key("metadata by SQL"),
  send: key("inbox by SQL"),
  sent: key("inbox by TypeScript"),
  completion: key("completion by SQL"),
  cancel: key("reason of a cancel"),
  schedule: key("input of a schedule"),
};
planted.set("grace.hopper@navy.example", "an e-mail address by SQL");

const leaky = tool({
  name: "leaky",
  description: "leaks",
  input: z.object({ key: z.string() }),
  effect: "read",
  execute: async (_input, context) => {
    context.log.info({ seen: said.logged, err: new Error(`near ${said.logged}`) }, `logged ${said.logged}`);
    const file = await context.saveFile(Buffer.from(`a file with ${said.file}`), "text/plain");
    return {
      [said.member]: said.result,
      card: Number(said.card),
      secret: context.secret("door"),
      encoded: Buffer.from(context.secret("door") ?? "").toString("base64"),
      file,
      big: "",
    };
  },
});
const throwing = tool({
  name: "throwing",
  description: "throws",
  input: z.object({}),
  effect: "read",
  execute: () => {
    throw new Error(`could not sign in with ${said.thrown}`, { cause: new Error(`server said ${said.cause}`) });
  },
});
const large = tool({
  name: "large",
  description: "is large",
  input: z.object({}),
  effect: "read",
  execute: () => `${"word ".repeat(40_000)}${said.big} ${"word ".repeat(40_000)}`,
});
const deferred = tool({ name: "deferred", description: "waits", input: z.object({}), effect: "idempotent", execute: () => later() });

const steps = [
  { failure: { code: "PROVIDER_OVERLOADED" as const, message: `overloaded near ${said.failure}`, retryAfterMs: 1 } },
  {
    reasoning: `thinking of ${said.reasoning}`,
    text: `I found ${said.text}`,
    toolCalls: [
      { name: "leaky", input: { key: said.argument } },
      { name: "leaky", arguments: `{"key": "${said.written}` },
      { name: "throwing", input: {} },
      { name: "large", input: {} },
      { name: "deferred", input: {} },
    ],
  },
  "Done, with nothing to hide.",
];
const leaking = agent({ name: "leaking", model: "scripted:leaking", instructions: "Leak.", tools: [leaky, throwing, large, deferred] });
const chatting = agent({ name: "chatting", model: "scripted:chatting", instructions: "Chat.", interactive: true });
const live = agent({ name: "live", model: "scripted:live", instructions: "Talk." });
const models = [
  scriptedModel(steps, { name: "scripted:leaking" }),
  scriptedModel(["Hello.", "Yes.", "Yes again."], { name: "scripted:chatting", by: "turn" }),
  scriptedModel([{ stream: streamed() }], { name: "scripted:live" }),
];
const liveKey = key("live text");

/** In pieces of three characters, as soon as somebody listens. */
async function* streamed(): AsyncGenerator<string> {
  const text = `${"some words before it ".repeat(40)}${key("live text, second")} and ${liveKey} ${"and some after it ".repeat(40)}`;
  for (let at = 0; at < text.length; at += 3) {
    if (at % 60 === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    yield text.slice(at, at + 3);
  }
}

/** What a tracer was told. */
const spans: unknown[] = [];
const known = new Set<EngineSpan>();
const tracing: Tracing = {
  start(name, { parent, attributes }) {
    if (parent !== undefined && !known.has(parent)) throw new Error("a parent that this tracer did not make");
    spans.push({ name, attributes });
    const span: EngineSpan = {
      traceparent: undefined,
      set: (more) => void spans.push(more),
      fail: (code, message) => void spans.push({ code, message }),
      event: (event, more) => void spans.push({ event, more }),
      end() {},
    };
    known.add(span);
    return span;
  },
};
let lab: Lab;
beforeAll(async () => {
  lab = await openLab(database.url, {
    agents: [leaking, chatting, live],
    models,
    tracing,
    redact: { personal: true, patterns: [{ name: "customer", pattern: /CUST-\d{4}/, sql: "CUST-\\d{4}" }] },
    secret: (name) => (name === "door" ? handedOut : undefined),
  });
});
afterAll(() => lab[Symbol.asyncDispose]());

/** Every table of ours and of the queue, as text. */
async function dump(): Promise<string> {
  const { rows: tables } = await lab.db.query<{ name: string }>(
    "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname in ('capstan', 'graphile_worker') order by 1",
  );
  const texts: string[] = [];
  for (const { name } of tables) {
    const { rows } = await lab.db.query<{ line: string }>(`select t::text as line from ${name} t`);
    texts.push(...rows.map(({ line }) => `${name}: ${line}`));
  }
  const { rows: chunks } = await lab.db.query<{ bytes: Buffer }>("select bytes from capstan.blob_chunks");
  texts.push(...chunks.map(({ bytes }) => `blob: ${bytes.toString("utf8")}`));
  return texts.join("\n");
}

function foundIn(where: string, text: string): string[] {
  return [...planted].filter(([secret]) => text.includes(secret)).map(([, place]) => `${place} in ${where}`);
}

describe("planted secrets", () => {
  it("are nowhere, after runs that met them at every place", async () => {
    // The hook is the client's: SQL knows nothing of it.
    const client = createClient({
      connectionString: database.url,
      redact: { personal: true, patterns: [{ name: "customer", pattern: /CUST-\d{4}/ }], hook: (text) => text.replaceAll(codename, "[a project]") },
    });
    try {
      const handle = await client.enqueue("leaking", inputs.client);
      const waiting = await until("the deferred call", async () => (await handle.waits()).find(({ kind }) => kind === "completion"));
      await lab.db.query("select capstan.signal($1, $2, $3)", [handle.id, `completion:${waiting.id}`, JSON.stringify({ output: { answer: inputs.completion } })]);
      expect(await handle.result({ timeoutMs: 20_000 })).toBe("Done, with nothing to hide.");
      await lab.intact(handle.id);

      const { rows } = await lab.db.query<{ id: string }>("select capstan.enqueue_run('chatting', $1, metadata => $2, interactive => true) as id", [
        JSON.stringify([
          { type: "text", text: JSON.stringify(inputs.sql) },
          { type: "text", text: inputs.mail },
        ]),
        JSON.stringify({ of: inputs.meta, card: inputs.sql.card }),
      ]);
      const chat = lab.capstan.run(rows[0]?.id as string);
      await until("the first answer", async () => (await chat.status()).wait_reason === "input");
      await lab.db.query("select capstan.send($1, $2)", [chat.id, JSON.stringify(`now ${inputs.send}`)]);
      await until("the second answer", async () => (await chat.status()).turn === 2 && (await chat.status()).wait_reason === "input");
      await client.run(chat.id).send(`and ${inputs.sent}`);
      await until("the third answer", async () => (await chat.status()).turn === 3 && (await chat.status()).wait_reason === "input");
      await lab.intact(chat.id);
      await chat.cancel(`because of ${inputs.cancel}`);
      await lab.capstan.schedules.create("yearly", { agent: "chatting", cron: "0 0 1 1 *", input: { key: inputs.schedule } });
      const sql = (await lab.db.query<{ id: string }>("select capstan.enqueue_run('leaking', $1, run_at => '2099-01-01') as id", [JSON.stringify(inputs.sql)])).rows[0]
        ?.id as string;
      const [created] = payloads(await lab.events(sql), "run.created");
      expect(created.input).toEqual({ note: "mind [redacted:aws_key] of [redacted:customer]", card: "[redacted:card]" });
      // What the row says of its size is true.
      expect(
        (
          await lab.db.query(
            "select e.size = octet_length(e.payload::text) and r.journal_bytes = e.size as ok from capstan.events e join capstan.runs r on r.id = e.run_id where e.run_id = $1",
            [sql],
          )
        ).rows,
      ).toEqual([{ ok: true }]);

      const tables = await dump();
      const logs = JSON.stringify(lab.log, (_, value: unknown) => (value instanceof Error ? { message: value.message, stack: value.stack, cause: String(value.cause) } : value));
      const asked = JSON.stringify(models.map(({ calls }) => calls));
      expect([foundIn("tables", tables), foundIn("logs", logs), foundIn("spans", JSON.stringify(spans)), foundIn("requests", asked)].flat()).toEqual([]);
      // They went through, and were hidden: not merely never there.
      for (const marker of ["aws_key", "card", "email", "customer", "secret"]) expect(tables).toContain(`[redacted:${marker}]`);
      expect(logs).toContain("logged [redacted:aws_key]");
      expect(spans).toContainEqual({ code: "PROVIDER_OVERLOADED", message: "overloaded near [redacted:aws_key]" });
      const [responded] = payloads(await lab.events(handle.id), "model.responded");
      expect(responded.content).toContainEqual({ type: "tool_call", call_id: expect.any(String), name: "leaky", input: { key: "[redacted:aws_key]" } });
      expect(payloads(await lab.events(handle.id), "tool.failed").map(({ error }) => error)).toContainEqual({
        code: "TOOL_FAILED",
        message: "could not sign in with [redacted:aws_key]",
        cause: ["server said [redacted:aws_key]"],
      });
    } finally {
      await client.close();
    }
  });

  it("are not in live text, however it is cut", async () => {
    const handle = await lab.capstan.enqueue("live", "talk");
    const items = await collect(handle.follow());
    const text = items.flatMap((item) => (item.type === "delta" ? [item.delta.text] : [])).join("");
    expect(text.length).toBeGreaterThan(100);
    expect(foundIn("live text", JSON.stringify(items) + text)).toEqual([]);
  });
});
