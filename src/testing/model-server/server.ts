/** A model vendor on the loopback interface: real protocols, scripted answers, strict about what it is sent. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { anthropicWire } from "./anthropic.ts";
import { Refused, type Json } from "./checks.ts";
import { PromptCache } from "./count.ts";
import { openAiChatWire } from "./openai-chat.ts";
import { openAiResponsesWire } from "./openai-responses.ts";
import { planReply, type StreamEvent } from "./plan.ts";
import type { ModelRequest, ModelServer, ModelServerOptions, Protocol, RefusedRequest, ScriptedError, ScriptedReply, SeenRequest } from "./script.ts";
import type { Wire } from "./wire.ts";

const WIRES: Readonly<Record<Protocol, Wire>> = {
  anthropic: anthropicWire,
  "openai-chat": openAiChatWire,
  "openai-responses": openAiResponsesWire,
};
const PATHS: Readonly<Record<string, Protocol>> = {
  "/v1/messages": "anthropic",
  "/v1/chat/completions": "openai-chat",
  "/v1/responses": "openai-responses",
};

export async function startModelServer(options: ModelServerOptions): Promise<ModelServer> {
  const requests: SeenRequest[] = [];
  const refused: RefusedRequest[] = [];
  const cache = new PromptCache();
  /** Reasoning by its signature, for signatures that the script made up itself. */
  const issued = new Map<string, string>();

  const serve = async (incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> => {
    const path = new URL(incoming.url ?? "/", "http://localhost").pathname;
    const protocol = Object.hasOwn(PATHS, path) ? PATHS[path] : undefined;
    const raw = await readBody(incoming);
    if (protocol === undefined || incoming.method !== "POST") return sendJson(outgoing, 404, { error: { message: `no route for ${incoming.method} ${path}` } });
    const wire = WIRES[protocol];

    let body: Json;
    try {
      body = parseBody(raw);
      wire.check(body, issued);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      refused.push({ protocol, raw, message: error.message });
      return sendJson(outgoing, error.status, wire.errorBody({ status: error.status, message: error.message, ...(error.code === undefined ? {} : { code: error.code }) }));
    }

    const request: ModelRequest = { protocol, path, body, raw, headers: headersOf(incoming), index: requests.length };
    const watch = watchClient(outgoing);
    requests.push({
      ...request,
      get sawAbort() {
        return watch.aborted.aborted;
      },
      closed: watch.closed,
    });
    const counted = cache.count(String(body["model"]), wire.segments(body), wire.automaticCache);
    const reply: ScriptedReply =
      options.windowTokens !== undefined && counted.input > options.windowTokens ? { error: wire.overflow(counted.input, options.windowTokens) } : await options.respond(request);
    const plan = planReply(request, reply, counted);
    for (const block of plan.blocks) {
      if (block.kind === "reasoning") issued.set(block.signature, block.text);
      if (block.kind === "redacted") issued.set(block.data, block.data);
    }
    if (reply.delayMs !== undefined) await delay(reply.delayMs, watch.aborted);
    if (watch.aborted.aborted) return;
    if (reply.hang === true) return untilAborted(watch.aborted);
    if (reply.error !== undefined && reply.error.afterEvents === undefined) return sendError(outgoing, wire, reply.error);
    if (wire.streamed(body)) return sendStream(outgoing, withTrouble(wire.events(plan, body), reply, wire), watch.aborted);
    sendJson(outgoing, 200, wire.whole(plan, body));
  };

  const server = createServer((incoming, outgoing) => {
    serve(incoming, outgoing).catch((error: unknown) => {
      // A script that throws is a fault of the test: say so instead of hanging it.
      if (outgoing.headersSent) outgoing.destroy();
      else
        sendJson(outgoing, 500, {
          error: {
            message: `the test's respond() failed: ${error instanceof Error ? error.message : String(error)}`,
            type: "server_error",
          },
        });
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(options.port ?? 0, "127.0.0.1", resolve);
  });
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the model server has no port");
  const url = `http://127.0.0.1:${address.port}`;
  const close = async () => {
    if (!server.listening) return;
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    server.closeAllConnections();
    await closed;
  };
  return { url, anthropicBaseUrl: `${url}/v1`, openaiBaseUrl: `${url}/v1`, requests, refused, close, [Symbol.asyncDispose]: close };
}

type Step = StreamEvent | "reset" | "end" | "hang";

/** The events with the script's trouble in the places where it shall happen. */
function withTrouble(events: readonly StreamEvent[], reply: ScriptedReply, wire: Wire): Step[] {
  const cut = (after: number, last: Step): Step[] => [...events.slice(0, after), last];
  if (reply.error?.afterEvents !== undefined) return [...events.slice(0, reply.error.afterEvents), wire.errorEvent(reply.error), "end"];
  if (reply.cutAfterEvents !== undefined) return cut(reply.cutAfterEvents, reply.cutBy ?? "reset");
  if (typeof reply.hang === "number") return cut(reply.hang, "hang");
  return [...events, "end"];
}

async function sendStream(outgoing: ServerResponse, steps: readonly Step[], aborted: AbortSignal): Promise<void> {
  outgoing.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  outgoing.flushHeaders();
  for (const step of steps) {
    if (aborted.aborted) return;
    if (step === "end") return void outgoing.end();
    if (step === "hang") return untilAborted(aborted);
    if (step === "reset") {
      // What was written before must leave this machine first, or the client sees fewer events than the script says.
      await new Promise<void>((resolve) => setImmediate(resolve));
      outgoing.destroy();
      return;
    }
    const name = step.event === undefined ? "" : `event: ${step.event}\n`;
    const written = `${name}data: ${step.data === "[DONE]" ? "[DONE]" : JSON.stringify(step.data)}\n\n`;
    if (!outgoing.write(written)) await drained(outgoing);
  }
}

function drained(outgoing: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      outgoing.off("drain", done);
      outgoing.off("close", done);
      resolve();
    };
    outgoing.once("drain", done);
    outgoing.once("close", done);
  });
}

function sendError(outgoing: ServerResponse, wire: Wire, error: ScriptedError): void {
  const status = error.status ?? 500;
  if (typeof error.body === "string") {
    outgoing.writeHead(status, { "content-type": "text/plain", ...error.headers });
    outgoing.end(error.body);
    return;
  }
  sendJson(outgoing, status, error.body ?? wire.errorBody(error), error.headers);
}

function sendJson(outgoing: ServerResponse, status: number, body: object, headers: Readonly<Record<string, string>> = {}): void {
  outgoing.writeHead(status, { "content-type": "application/json", ...headers });
  outgoing.end(JSON.stringify(body));
}

function watchClient(outgoing: ServerResponse): { readonly aborted: AbortSignal; readonly closed: Promise<"finished" | "aborted"> } {
  const controller = new AbortController();
  let destroyedByUs = false;
  const destroy = outgoing.destroy.bind(outgoing);
  outgoing.destroy = (error) => {
    destroyedByUs = true;
    return destroy(error);
  };
  const closed = new Promise<"finished" | "aborted">((resolve) => {
    outgoing.once("close", () => {
      const aborted = !outgoing.writableFinished && !destroyedByUs;
      if (aborted) controller.abort();
      resolve(aborted ? "aborted" : "finished");
    });
  });
  return { aborted: controller.signal, closed };
}

function untilAborted(aborted: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (aborted.aborted) resolve();
    else aborted.addEventListener("abort", () => resolve(), { once: true });
  });
}

function delay(ms: number, aborted: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    aborted.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

async function readBody(incoming: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of incoming) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString("utf8");
}

function parseBody(raw: string): Json {
  let body: unknown;
  try {
    body = JSON.parse(raw);
  } catch {
    throw new Refused("The request body is not valid JSON");
  }
  if (typeof body !== "object" || body === null || Array.isArray(body)) throw new Refused("The request body is not a JSON object");
  return body as Json;
}

function headersOf(incoming: IncomingMessage): Record<string, string> {
  return Object.fromEntries(Object.entries(incoming.headers).map(([name, value]) => [name, Array.isArray(value) ? value.join(", ") : (value ?? "")]));
}
