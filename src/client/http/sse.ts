/** Reads a stream of server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream (read in 2026). */
export interface ServerSentEvent {
  readonly event: string;
  readonly data: string;
  readonly id?: string;
}

/** Takes bytes as they come, cut anywhere; gives the events that are whole. */
export class SseParser {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #event = "";
  #data: string[] = [];
  #id: string | undefined;

  *push(bytes: Uint8Array): Generator<ServerSentEvent> {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    let from = 0;
    for (;;) {
      const end = this.#rest.indexOf("\n", from);
      if (end === -1) break;
      const line = this.#rest.slice(from, this.#rest[end - 1] === "\r" && end > from ? end - 1 : end);
      from = end + 1;
      const whole = this.#line(line);
      if (whole !== undefined) yield whole;
    }
    this.#rest = this.#rest.slice(from);
  }

  #line(line: string): ServerSentEvent | undefined {
    if (line === "") {
      const [event, data, id] = [this.#event, this.#data, this.#id];
      this.#event = "";
      this.#data = [];
      this.#id = undefined;
      return data.length === 0 ? undefined : { event: event === "" ? "message" : event, data: data.join("\n"), ...(id === undefined ? {} : { id }) };
    }
    const colon = line.indexOf(":");
    // A comment: the sign of life of a stream that has nothing to tell.
    if (colon === 0) return undefined;
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.#event = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id") this.#id = value;
    return undefined;
  }
}
