/** Servers that speak OpenAI's Chat Completions: Ollama, vLLM, llama.cpp, LM Studio, gateways. */
import type { Vendor } from "./vendor.ts";
import { packageVersion } from "./package-version.ts";

export const OLLAMA_BASE_URL = "http://127.0.0.1:11434/v1";

export interface CompatibleServer {
  readonly baseUrl: string;
  readonly apiKey?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Whether the server honours `response_format: json_schema`. Without it the agent gets a `submit_output` tool. */
  readonly structuredOutput?: boolean;
}

export function openAiCompatibleVendor(options: CompatibleServer & { readonly provider: string; readonly model: string }): Vendor {
  const structuredOutput = options.structuredOutput ?? false;
  return {
    client: packageVersion("@ai-sdk/openai-compatible"),
    structuredOutput,
    // The client reads options given under this name for any server.
    shape: { optionsKey: "openaiCompatible", legalCallId: (id) => (id === "" ? "call" : id) },
    open: async (fetch) => {
      const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
      return createOpenAICompatible({
        name: options.provider,
        baseURL: options.baseUrl,
        fetch,
        // Without it these servers report no usage in a stream.
        includeUsage: true,
        supportsStructuredOutputs: structuredOutput,
        ...(options.apiKey === undefined ? {} : { apiKey: options.apiKey }),
        ...(options.headers === undefined ? {} : { headers: { ...options.headers } }),
      }).chatModel(options.model);
    },
  };
}
