/** What stands in for a collector: takes OTLP over HTTP as JSON and keeps the spans. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { text } from "node:stream/consumers";

export interface ReceivedSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly links?: readonly { readonly traceId: string; readonly spanId: string }[];
  readonly attributes: readonly { readonly key: string; readonly value: { readonly [type: string]: unknown } }[];
  readonly status?: { readonly code?: number; readonly message?: string };
}

interface Body {
  readonly resourceSpans: readonly { readonly resource: Pick<ReceivedSpan, "attributes">; readonly scopeSpans: readonly { readonly spans: readonly ReceivedSpan[] }[] }[];
}

export async function startCollector({ answers = true }: { readonly answers?: boolean } = {}) {
  const spans: ReceivedSpan[] = [];
  const paths = new Set<string>();
  const services = new Set<unknown>();
  const receive = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    paths.add(request.url ?? "");
    const body = JSON.parse(await text(request)) as Body;
    for (const { resource, scopeSpans } of body.resourceSpans ?? []) {
      services.add(attribute(resource, "service.name"));
      for (const scope of scopeSpans) spans.push(...scope.spans);
    }
    if (answers) response.setHeader("content-type", "application/json").end("{}");
  };
  const server = createServer((request, response) => void receive(request, response));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  return {
    url: `http://127.0.0.1:${port}`,
    spans,
    paths,
    services,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

export function attribute(span: Pick<ReceivedSpan, "attributes">, key: string): unknown {
  const value = span.attributes.find((each) => each.key === key)?.value;
  return value && Object.values(value)[0];
}
