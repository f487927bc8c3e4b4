/**
 * One open stream. What it has not taken stays in the database: beyond a bound nothing more is put into its buffer, and
 * one that takes nothing for a while is cut off. Either way it goes on from its cursor, and nobody waits for it.
 */
import type { ServerResponse } from "node:http";
import { HELLO, KEEPALIVE } from "./frames.ts";

export interface FollowerLimits {
  /** Bytes that may wait for one client, beside the event that went over it. */
  readonly bufferBytes: number;
  /** A client whose buffer is full and does not empty for so long is cut off. */
  readonly stallMs: number;
  readonly keepaliveMs: number;
}

export interface FollowerOptions {
  readonly response: ServerResponse;
  /** The seq of the last event that the client has. */
  readonly after: number;
  readonly deltas: boolean;
  /** The token that it came with; none on a loopback without tokens. */
  readonly tokenId: string | undefined;
  readonly limits: FollowerLimits;
  /** There is room again. */
  readonly onRoom: () => void;
  /** The client is gone, or the stream has ended. */
  readonly onGone: () => void;
}

export class Follower {
  readonly tokenId: string | undefined;
  readonly deltas: boolean;
  /** The seq of the last event that was written for it. */
  cursor: number;
  readonly #response: ServerResponse;
  readonly #limits: FollowerLimits;
  readonly #onGone: () => void;
  #isOpen = true;
  #writtenMs = performance.now();
  #fullSinceMs: number | undefined;

  constructor({ response, after, deltas, tokenId, limits, onRoom, onGone }: FollowerOptions) {
    this.#response = response;
    this.#limits = limits;
    this.#onGone = onGone;
    this.cursor = after;
    this.deltas = deltas;
    this.tokenId = tokenId;
    response.on("drain", () => {
      this.#fullSinceMs = undefined;
      if (this.#isOpen) onRoom();
    });
    response.on("close", () => this.#leave());
    // A client that resets its connection is an everyday end; without a handler it would be an unhandled error.
    response.on("error", () => this.#leave());
    response.write(HELLO);
  }

  get hasRoom(): boolean {
    if (!this.#isOpen) return false;
    if (this.#response.writableLength < this.#limits.bufferBytes) return true;
    this.#fullSinceMs ??= performance.now();
    return false;
  }

  /** False when there is no room: then nothing of it was written. */
  offer(frame: Buffer): boolean {
    if (!this.hasRoom) return false;
    this.#writtenMs = performance.now();
    this.#response.write(frame);
    return true;
  }

  /** The last words, also for one whose buffer is full: it has some time to take them. */
  finish(frame: Buffer): void {
    if (!this.#isOpen) return;
    this.#leave();
    const cut = setTimeout(() => this.#response.destroy(), this.#limits.stallMs).unref();
    this.#response.on("close", () => clearTimeout(cut));
    this.#response.end(frame, () => clearTimeout(cut));
  }

  /** Ends without a word, so that the client comes again. What it has not taken does not keep the process waiting. */
  hangUp(): void {
    if (!this.#isOpen) return;
    this.#leave();
    if (this.#response.writableLength > 0) this.#response.destroy();
    else this.#response.end();
  }

  /** To be called every now and then: a sign of life for proxies and for a client that is silently gone. */
  check(nowMs: number): void {
    if (this.#fullSinceMs !== undefined && nowMs - this.#fullSinceMs > this.#limits.stallMs) {
      this.#leave();
      this.#response.destroy();
    } else if (nowMs - this.#writtenMs >= this.#limits.keepaliveMs) this.offer(KEEPALIVE);
  }

  #leave(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#onGone();
  }
}
