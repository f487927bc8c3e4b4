/**
 * What the vendors demand of a list of messages, as far as it shows in ours: the last check of a planned view, and of
 * the property tests. Blank texts and empty answers are judged as they are sent (providers/call-options.ts leaves them
 * out, and gives an empty user message a text).
 */
import type { AssistantMessage, Message, ToolCallPart } from "../transcript/message.ts";

export type Protocol = "anthropic_messages" | "chat_completions" | "responses" | "gemini";

export interface ProtocolProblem {
  readonly protocol: Protocol;
  /** Index of the message. */
  readonly at: number;
  readonly problem: string;
}

export interface ViewCheck {
  /** The run waits for input or has ended: the list need not be sendable yet, so it may end with an answer. */
  readonly atRest?: boolean;
}

type Validator = (messages: readonly Message[], check: ViewCheck) => Omit<ProtocolProblem, "protocol">[];

const validators: { readonly [P in Protocol]: Validator } = {
  // Roles are merged by the client, so two user messages in a row are one; ends as `endsOpen` says since models take no prefill.
  anthropic_messages: (messages, check) => [
    ...startsWithUser(messages),
    ...endsOpen(messages, check),
    ...pairs(messages, check),
    ...contents(messages),
    ...reasoningFirst(messages),
  ],
  // Results follow their caller at once, one message each; order and number are what `pairs` says.
  chat_completions: (messages, check) => [...startsWithUser(messages), ...endsOpen(messages, check), ...pairs(messages, check), ...contents(messages)],
  // A flat list of items: what belongs together is told by ids only, and reasoning by the item that follows it.
  responses: (messages, check) => [...startsWithUser(messages), ...endsOpen(messages, check), ...pairs(messages, check), ...contents(messages), ...reasoningLeads(messages)],
  // Calls come right after a user's or a function's turn, and are answered by as many responses under the same names.
  gemini: (messages, check) => [
    ...startsWithUser(messages),
    ...endsOpen(messages, check),
    ...pairs(messages, check),
    ...contents(messages),
    ...sameNames(messages),
    ...callsAfterTurn(messages),
  ],
};

export function validateView(messages: readonly Message[], check: ViewCheck = {}): ProtocolProblem[] {
  return (Object.keys(validators) as Protocol[]).flatMap((protocol) => validators[protocol](messages, check).map((found) => ({ protocol, ...found })));
}

/**
 * What vendors would refuse in the new view and not in the old one. What a run's model gave is not for a compaction to
 * judge: a response of reasoning alone, say, must not keep its run from being compacted.
 */
export function newProblem(before: readonly Message[], after: readonly Message[]): string | undefined {
  // An answer at the end is no request yet: the next input follows it.
  const problemsOf = (view: readonly Message[]): string[] =>
    validateView(view, { atRest: view.at(-1)?.role === "assistant" }).map(({ protocol, problem }) => `${protocol}: ${problem}`);
  const known = problemsOf(before);
  return problemsOf(after).find((problem) => {
    const at = known.indexOf(problem);
    if (at !== -1) known.splice(at, 1);
    return at === -1;
  });
}

type Found = { readonly at: number; readonly problem: string };

function startsWithUser(messages: readonly Message[]): Found[] {
  if (messages[0]?.role === "user") return [];
  return [{ at: 0, problem: messages.length === 0 ? "the list is empty" : `begins with a message of role ${messages[0]?.role}` }];
}

function endsOpen(messages: readonly Message[], { atRest = false }: ViewCheck): Found[] {
  return !atRest && messages.at(-1)?.role === "assistant" ? [{ at: messages.length - 1, problem: "ends with an answer: nothing is asked of the model" }] : [];
}

/**
 * Every call has exactly one result, in the tool messages right behind it, and every result its call, in both directions.
 * Models repeat ids, even within a response; calls and results of one id pair in order, and are sent under ids of their own.
 */
function pairs(messages: readonly Message[], { atRest = false }: ViewCheck): Found[] {
  const found: Found[] = [];
  let open: string[] = [];
  const leaveOpen = (at: number): void => {
    for (const id of open) found.push({ at, problem: `call ${id} has no result` });
    open = [];
  };
  for (const [at, message] of messages.entries()) {
    if (message.role !== "tool") leaveOpen(at - 1);
    if (message.role === "assistant") {
      open = message.content.flatMap((part) => (part.type === "tool_call" ? [part.call_id] : []));
    }
    if (message.role !== "tool") continue;
    for (const { call_id } of message.content) {
      const i = open.indexOf(call_id);
      if (i === -1) found.push({ at, problem: `result ${call_id} has no call before it, or two results` });
      else open.splice(i, 1);
    }
  }
  // A run that ended in the middle of its calls: they are answered (as interrupted) before it goes on (C06).
  if (!atRest) leaveOpen(messages.length - 1);
  return found;
}

function contents(messages: readonly Message[]): Found[] {
  return messages.flatMap((message, at) => (message.content.length === 0 ? [{ at, problem: `the ${message.role} message is empty` }] : []));
}

const sentParts = (message: AssistantMessage) => message.content.filter((part) => part.type !== "text" || part.text.trim() !== "");

/** A response that is nothing but reasoning: the item that the reasoning belongs to is missing. */
function reasoningLeads(messages: readonly Message[]): Found[] {
  return messages.flatMap((message, at) => {
    if (message.role !== "assistant") return [];
    const parts = sentParts(message);
    return parts.length > 0 && parts.every((part) => part.type === "reasoning") ? [{ at, problem: "reasoning without the item that follows it" }] : [];
  });
}

/** Calls end a response: signed reasoning behind the last call was moved there by somebody. */
function reasoningFirst(messages: readonly Message[]): Found[] {
  return messages.flatMap((message, at) => {
    if (message.role !== "assistant") return [];
    const parts = sentParts(message);
    const lastCall = parts.findLastIndex((part) => part.type === "tool_call");
    const moved = lastCall !== -1 && parts.slice(lastCall).some((part) => part.type === "reasoning" && part.metadata !== undefined);
    return moved ? [{ at, problem: "signed reasoning stands behind the last call" }] : [];
  });
}

function sameNames(messages: readonly Message[]): Found[] {
  return messages.flatMap((message, at) => {
    if (message.role !== "tool") return [];
    const calls = callsBefore(messages, at);
    return message.content.flatMap((part) => {
      const i = calls.findIndex(({ call_id }) => call_id === part.call_id);
      const [call] = i === -1 ? [] : calls.splice(i, 1);
      return call === undefined || call.name === part.name ? [] : [{ at, problem: `result ${part.call_id} is named ${part.name}, its call ${call.name}` }];
    });
  });
}

function callsAfterTurn(messages: readonly Message[]): Found[] {
  return messages.flatMap((message, at) => {
    const calls = message.role === "assistant" && message.content.some((part) => part.type === "tool_call");
    return calls && messages[at - 1]?.role === "assistant" ? [{ at, problem: "calls follow another answer" }] : [];
  });
}

function callsBefore(messages: readonly Message[], at: number): ToolCallPart[] {
  let i = at;
  while (messages[i]?.role === "tool") i--;
  const caller = messages[i];
  return caller?.role === "assistant" ? caller.content.filter((part) => part.type === "tool_call") : [];
}
