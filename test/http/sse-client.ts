/** A client of a stream as a test looks at it: small, so that a thousand fit into one process; comes again from its last id. */
import http from "node:http";

export interface Sse {
  readonly id?: number;
  readonly event: string;
  readonly data: string;
}

export interface SseConnection {
  readonly items: readonly Sse[];
  readonly comments: number;
  readonly status: Promise<number>;
  /** Resolves when the connection is gone, however. */
  readonly closed: Promise<void>;
  readonly headers: Promise<http.IncomingHttpHeaders>;
  pause(): void;
  close(): void;
}

const agent = new http.Agent({ keepAlive: false, maxSockets: Number.POSITIVE_INFINITY });

export function connectSse(url: string, { headers = {}, onItem }: { readonly headers?: http.OutgoingHttpHeaders; readonly onItem?: (item: Sse) => void } = {}): SseConnection {
  const items: Sse[] = [];
  let comments = 0;
  let rest = "";
  const status = Promise.withResolvers<number>();
  const answered = Promise.withResolvers<http.IncomingHttpHeaders>();
  const closed = Promise.withResolvers<void>();
  status.promise.catch(() => {});
  answered.promise.catch(() => {});
  let response: http.IncomingMessage | undefined;
  const request = http.get(url, { agent, headers: { accept: "text/event-stream", ...headers } }, (incoming) => {
    response = incoming;
    status.resolve(incoming.statusCode ?? 0);
    answered.resolve(incoming.headers);
    incoming.setEncoding("utf8").on("data", (text: string) => {
      const blocks = (rest + text).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const fields = new Map(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
        if (fields.has("")) comments++;
        const id = fields.get("id");
        const data = fields.get("data");
        if (data === undefined) continue;
        const item = { event: fields.get("event") ?? "message", data, ...(id === undefined ? {} : { id: Number(id) }) };
        items.push(item);
        onItem?.(item);
      }
    });
    incoming.on("error", () => {});
    incoming.on("close", () => closed.resolve());
  });
  request.on("error", (error) => {
    status.reject(error);
    answered.reject(error);
    closed.resolve();
  });
  return {
    items,
    get comments() {
      return comments;
    },
    status: status.promise,
    headers: answered.promise,
    closed: closed.promise,
    pause: () => void response?.pause(),
    close: () => void request.destroy(),
  };
}

export const idsOf = (items: readonly Sse[]): number[] => items.flatMap(({ id }) => (id === undefined ? [] : [id]));
