/** Arbitrary runs: journals as the engine writes them, from a plan of turns. */
import fc from "fast-check";
import { callStepKey, eventSchemas, responseStepKey, type CapstanEvent, type EventPayload, type EventType } from "../../src/domain/event.ts";
import type { AssistantPart, UserPart } from "../../src/domain/transcript/message.ts";
import { storedJson, storedObject, storedText } from "./arbitrary-json.ts";

type Usage = EventPayload<"model.responded">["usage"];
type CallEnd =
  | { readonly kind: "completed"; readonly output: EventPayload<"tool.completed">["output"] }
  | { readonly kind: "failed"; readonly code: string }
  | { readonly kind: "interrupted"; readonly reason: EventPayload<"tool.interrupted">["reason"] };
interface Call {
  readonly name: string;
  readonly part: Omit<Extract<AssistantPart, { type: "tool_call" }>, "call_id" | "name" | "type">;
  readonly announced: "with the response" | "by its own event" | "not";
  readonly end: CallEnd;
  /** Calls end in the order of these. */
  readonly rank: number;
}
type Trouble = "lost" | "failed" | "failed, does not count" | "parked for retry";
interface TurnPlan {
  readonly troubles: readonly Trouble[];
  readonly text: readonly AssistantPart[];
  readonly usage: Usage;
  readonly calls: readonly Call[];
  /** The worker that answers the calls is another one, and the run was parked in between. */
  readonly parkedWithOpenCalls: boolean;
  /** What the budget says at the boundary behind it. */
  readonly budget: "nothing" | "soft" | "hard" | "wrap up";
  readonly after:
    | { readonly kind: "corrected"; readonly reason: EventPayload<"model.corrected">["reason"] }
    | { readonly kind: "input"; readonly parked: boolean; readonly content: UserPart[] };
}

const usage: fc.Arbitrary<Usage> = fc.record({ input: fc.nat(1000), output: fc.nat(1000), scale: fc.constantFrom("provider", "estimate", "offline") });

const call: fc.Arbitrary<Call> = fc.record({
  name: fc.constantFrom("search", "pay", "submit_output"),
  part: fc.oneof(
    storedObject.map((input) => ({ input })),
    fc.record({ arguments: storedText, invalid: fc.constant("it is not JSON") }),
    fc.record({ input: storedObject, arguments: storedText, metadata: storedObject }),
  ),
  announced: fc.constantFrom("with the response", "by its own event", "not"),
  end: fc.oneof(
    storedJson.map((output): CallEnd => ({ kind: "completed", output })),
    fc.constantFrom<CallEnd>({ kind: "failed", code: "TOOL_FAILED" }, { kind: "failed", code: "OUTPUT_INVALID" }),
    fc.constantFrom<CallEnd>({ kind: "interrupted", reason: "worker_lost" }, { kind: "interrupted", reason: "timed_out" }, { kind: "interrupted", reason: "aborted" }),
  ),
  rank: fc.nat(),
});

const textParts: fc.Arbitrary<AssistantPart[]> = fc.array(
  fc.oneof(
    storedText.map((text): AssistantPart => ({ type: "text", text })),
    fc.tuple(storedText, storedObject).map(([text, metadata]): AssistantPart => ({ type: "reasoning", text, metadata })),
  ),
  { maxLength: 2 },
);

const turnPlan: fc.Arbitrary<TurnPlan> = fc.record({
  troubles: fc.array(fc.constantFrom<Trouble>("lost", "failed", "failed, does not count", "parked for retry"), { maxLength: 2 }),
  text: textParts,
  usage,
  calls: fc.oneof(fc.constant([]), fc.array(call, { minLength: 1, maxLength: 4 })),
  parkedWithOpenCalls: fc.boolean(),
  budget: fc.constantFrom<TurnPlan["budget"]>("nothing", "nothing", "nothing", "soft", "hard", "wrap up"),
  after: fc.oneof(
    fc.constantFrom<TurnPlan["after"]>({ kind: "corrected", reason: "empty" }, { kind: "corrected", reason: "truncated" }, { kind: "corrected", reason: "output_invalid" }),
    fc.record({
      kind: fc.constant("input" as const),
      parked: fc.boolean(),
      content: fc.array(
        storedText.map((text): UserPart => ({ type: "text", text })),
        { minLength: 1, maxLength: 2 },
      ),
    }),
  ),
});

const end = fc.constantFrom("run.completed", "run.failed", "run.cancelled", "none");

/** Whole journals, finished or not; some cut off by a cancel at any place. */
export const run: fc.Arbitrary<readonly CapstanEvent[]> = fc
  .record({
    input: storedJson,
    pinnedLater: fc.boolean(),
    interactive: fc.boolean(),
    turns: fc.array(turnPlan, { maxLength: 5 }),
    end,
    cancelAfter: fc.option(fc.nat(40), { freq: 3 }),
  })
  .map(({ input, pinnedLater, interactive, turns, end: how, cancelAfter }) => {
    const journal = new Journal();
    journal.write("run.created", { origin: "api", agent: "a", definition_sha: pinnedLater ? null : "sha256:1", input, ...(interactive ? { interactive } : {}) });
    if (pinnedLater) journal.write("run.pinned", { definition_sha: "sha256:1" });
    for (const plan of turns) {
      writeTurn(journal, plan);
      writeBudget(journal, plan);
    }
    if (cancelAfter !== null) {
      journal.events.splice(Math.max(1, cancelAfter));
      journal.write("run.cancelled", {});
    } else if (how === "run.completed") journal.write(how, { output: "done" });
    else if (how === "run.failed") journal.write(how, { error: { code: "TURN_LIMIT", message: "too many" } });
    else if (how === "run.cancelled") journal.write(how, { reason: "stop" });
    return journal.events;
  });

function writeBudget(journal: Journal, { budget }: TurnPlan): void {
  if (budget === "nothing") return;
  const reached = { limit: "turns", used: journal.turn, of: journal.turn } as const;
  if (budget === "soft") journal.write("budget.reached", { level: "soft", ...reached });
  else journal.write("budget.reached", { level: "hard", ...reached, ...(budget === "wrap up" ? { text: "answer now" } : {}) });
}

function writeTurn(journal: Journal, plan: TurnPlan): void {
  journal.turn++;
  let attempt = 0;
  const ask = (again?: "lost" | "failed"): void => {
    attempt++;
    journal.write(
      "model.requested",
      { model: "offline:x", to_seq: 1, render: 1, breakpoints: [0], size_bytes: 1, hash: "h", ...(again === undefined ? {} : { again }) },
      { attempt },
    );
  };
  ask();
  for (const trouble of plan.troubles) {
    if (trouble !== "lost") {
      journal.write(
        "model.failed",
        { error: { code: "PROVIDER_OVERLOADED", message: "busy" }, retryable: true, counts: trouble === "failed", usage: plan.usage, duration_ms: 1 },
        { attempt },
      );
    }
    if (trouble === "parked for retry") journal.write("run.parked", { reason: "retry", wake_at: "2026-01-01T00:00:00Z" });
    ask(trouble === "lost" ? "lost" : "failed");
  }
  const calls = plan.calls.map(({ name, part }, index): AssistantPart => ({ type: "tool_call", call_id: `c${journal.turn}.${index}`, name, ...part }));
  const announced = plan.calls.flatMap((c, index) => (c.announced === "with the response" ? [index] : []));
  journal.write(
    "model.responded",
    {
      content: [...plan.text, ...calls],
      finish: { reason: calls.length > 0 ? "tool_calls" : "stop" },
      usage: plan.usage,
      ...(announced.length > 0 ? { announced } : {}),
      duration_ms: 1,
    },
    { attempt, stepKey: responseStepKey(journal.turn) },
  );
  if (calls.length === 0) {
    const { after } = plan;
    if (after.kind === "corrected") journal.write("model.corrected", { reason: after.reason, text: "again, please" });
    else {
      if (after.parked) journal.write("run.parked", { reason: "input" });
      journal.write("input.applied", { content: after.content, ...(after.parked ? {} : { steering: true }) }, { inboxId: `i${journal.turn}` });
    }
    return;
  }
  if (plan.parkedWithOpenCalls) journal.write("run.parked", { reason: "agent_missing" });
  const order = plan.calls.map((c, index) => ({ c, index })).toSorted((a, b) => a.c.rank - b.c.rank || a.index - b.index);
  for (const { c, index } of order) {
    const base = { call_id: `c${journal.turn}.${index}`, index, name: c.name };
    if (c.announced === "by its own event") journal.write("tool.started", base);
    const envelope = { attempt: 1, stepKey: callStepKey(journal.turn, index), origin: `tool:${c.name}` };
    if (c.end.kind === "completed") journal.write("tool.completed", { ...base, output: c.end.output, duration_ms: 1 }, envelope);
    else if (c.end.kind === "failed") journal.write("tool.failed", { ...base, error: { code: c.end.code, message: "no" }, duration_ms: 1 }, envelope);
    else journal.write("tool.interrupted", { ...base, reason: c.end.reason }, envelope);
  }
}

/** Gives events their seq and turn. Also for runs written out by hand. */
export class Journal {
  readonly events: CapstanEvent[] = [];
  turn = 0;

  write<T extends EventType>(type: T, payload: EventPayload<T>, envelope: Partial<Omit<CapstanEvent, "type" | "payload" | "seq">> = {}): this {
    eventSchemas[type].parse(payload);
    this.events.push({ seq: this.events.length + 1, turn: this.turn, attempt: 0, epoch: 0, ...envelope, type, payload } as CapstanEvent);
    return this;
  }

  created(input: EventPayload<"run.created">["input"] = "task", more: Partial<EventPayload<"run.created">> = {}): this {
    return this.write("run.created", { origin: "api", agent: "a", definition_sha: "sha256:1", input, ...more });
  }

  requested(attempt = 1, more: Partial<EventPayload<"model.requested">> = {}): this {
    return this.write("model.requested", { model: "offline:x", to_seq: 1, render: 1, breakpoints: [], size_bytes: 1, hash: "h", ...more }, { attempt });
  }

  responded(content: AssistantPart[], more: Partial<EventPayload<"model.responded">> = {}): this {
    return this.write("model.responded", { content, finish: { reason: "stop" }, usage: { input: 10, output: 5, scale: "provider" }, duration_ms: 1, ...more });
  }
}
