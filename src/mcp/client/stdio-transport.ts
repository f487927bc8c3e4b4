/**
 * An MCP server as a child process. Of our own, for what the SDK's lacks: a flood is cut off at its first byte too many and
 * its writer killed at once, reading gives way to the event loop between chunks, a process that starts others is ended with
 * them, and whoever waits learns how the process ended.
 *
 * The process leads a group of its own: Ctrl-C in a terminal is for the worker, which lets calls finish. When the worker is
 * killed outright, the server's standard input ends, by which servers end.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { setImmediate as nextRound, setTimeout as sleep } from "node:timers/promises";
import { getDefaultEnvironment } from "@modelcontextprotocol/sdk/client/stdio.js";
import { serializeMessage } from "@modelcontextprotocol/sdk/shared/stdio.js";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { JSONRPCMessageSchema, type JSONRPCMessage } from "@modelcontextprotocol/sdk/types.js";
import { parseJsonText } from "../../domain/json-text.ts";
import type { Log } from "../../engine/ports.ts";
import { McpFloodError, McpNotSentError } from "./errors.ts";
import { LineBuffer } from "./line-buffer.ts";
import type { StdioServer } from "./spec.ts";
import { logLines } from "./stderr-lines.ts";

/** What a server gets to end by itself after its input has ended, and again after SIGTERM. */
const END_WITHIN_MS = 1_000;
/** A process is gone, but one that it started holds its output open: what was written is read so long. */
const DRAIN_MS = 500;

const running = new Set<ChildProcess>();
let isHooked = false;

export class StdioTransport implements Transport {
  onclose?: () => void;
  onerror?: (error: Error) => void;
  onmessage?: (message: JSONRPCMessage) => void;
  /** Why the connection ended, in words; undefined while it is up, or when it was closed by us. */
  endReason: string | undefined;
  isFlooded = false;
  readonly #server: StdioServer;
  readonly #log: Log;
  #child: ChildProcess | undefined;
  #isClosed = false;

  constructor(server: StdioServer, log: Log) {
    this.#server = server;
    this.#log = log;
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  async start(): Promise<void> {
    const { command, args, env, cwd, name } = this.#server;
    const child = spawn(command, args, {
      env: { ...getDefaultEnvironment(), ...env },
      stdio: ["pipe", "pipe", "pipe"],
      detached: process.platform !== "win32",
      windowsHide: true,
      ...(cwd === undefined ? {} : { cwd }),
    });
    this.#child = child;
    endWithProcess(child);
    child.stdin.on("error", (error) => this.onerror?.(error));
    logLines(child.stderr, { log: this.#log, server: name });
    await new Promise<void>((resolve, reject) => {
      child.once("error", (error) => {
        running.delete(child);
        reject(new McpNotSentError(`${command} cannot be started: ${error.message}`));
      });
      child.once("spawn", resolve);
    });
    const read = this.#read(child.stdout);
    child.once("exit", (code, signal) => {
      running.delete(child);
      this.endReason ??= signal === null ? `the server exited with code ${code}` : `the server was ended by ${signal}`;
      void Promise.race([read, sleep(DRAIN_MS, undefined, { ref: false })]).then(() => {
        // What it had started and left behind.
        killGroup(child, "SIGKILL");
        this.#finish();
      });
    });
  }

  async send(message: JSONRPCMessage): Promise<void> {
    const stdin = this.#child?.stdin;
    if (this.#isClosed || stdin === undefined || stdin === null || !stdin.writable) throw new McpNotSentError(this.endReason ?? "the connection is closed");
    // A server that does not read has this much of our memory: the arguments of the calls that it is asked for.
    stdin.write(serializeMessage(message));
  }

  async close(): Promise<void> {
    const child = this.#child;
    if (child !== undefined && child.exitCode === null && child.signalCode === null && child.pid !== undefined) {
      const exited = once(child, "exit").then(() => true);
      const isGone = (): Promise<boolean> => Promise.race([exited, sleep(END_WITHIN_MS, false)]);
      child.stdin?.end();
      if (!(await isGone())) {
        killGroup(child, "SIGTERM");
        if (!(await isGone())) killGroup(child, "SIGKILL");
        await exited;
      }
    }
    this.#finish();
  }

  async #read(stdout: NonNullable<ChildProcess["stdout"]>): Promise<void> {
    const { maxMessageBytes } = this.#server;
    const lines = new LineBuffer(maxMessageBytes);
    // Bytes of lines that answer nothing: a server that only notifies, or prints, floods us just as well.
    let idleBytes = 0;
    try {
      for await (const chunk of stdout as AsyncIterable<Buffer>) {
        if (this.#isClosed) return;
        const taken = lines.take(chunk);
        idleBytes += chunk.length;
        for (const line of taken === "too_long" ? [] : taken) if (this.#deliver(line)) idleBytes = 0;
        if (taken === "too_long" || idleBytes > maxMessageBytes + chunk.length) {
          this.#cutOff(`the server sent more than ${maxMessageBytes} bytes ${taken === "too_long" ? "in one message" : "without an answer among them"}`);
          return;
        }
        await nextRound();
      }
    } catch (error) {
      this.onerror?.(error as Error);
    }
  }

  /** Whether it was an answer. */
  #deliver(line: string): boolean {
    if (line.trim() === "") return false;
    let message: JSONRPCMessage;
    try {
      const json = parseJsonText(line);
      // What a server logs by the protocol is nothing that anybody asked for: not worth checking by the thousand.
      if ((json as { readonly method?: unknown } | null)?.method === "notifications/message") return false;
      message = JSONRPCMessageSchema.parse(json);
    } catch {
      this.onerror?.(new Error(`not a message of the protocol: ${JSON.stringify(line.slice(0, 200).toWellFormed())}`));
      return false;
    }
    this.onmessage?.(message);
    return "result" in message || "error" in message;
  }

  #cutOff(reason: string): void {
    this.endReason = reason;
    this.isFlooded = true;
    this.onerror?.(new McpFloodError(reason));
    if (this.#child !== undefined) killGroup(this.#child, "SIGKILL");
    this.#finish();
  }

  #finish(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#child?.stdin?.destroy();
    this.#child?.stdout?.destroy();
    this.onclose?.();
  }
}

function killGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  if (child.pid === undefined) return;
  try {
    if (process.platform === "win32") child.kill(signal);
    else process.kill(-child.pid, signal);
  } catch {
    // Gone already, the whole group of it.
  }
}

/** A worker that ends by process.exit leaves no server behind. */
function endWithProcess(child: ChildProcess): void {
  running.add(child);
  if (isHooked) return;
  isHooked = true;
  process.on("exit", () => {
    for (const each of running) killGroup(each, "SIGKILL");
  });
}
