/** Finds models by full name, `<provider>:<model>`, and fails where a run would otherwise fail in the middle of a turn. */
import type { LanguageModelV4 } from "@ai-sdk/provider";
import type { FilePart } from "../domain/transcript/message.ts";
import type { Model, ModelCatalogue } from "../engine/model-port.ts";
import { createForeignModel, createVendorModel, type MediaLoader } from "./ai-sdk.ts";
import { ANTHROPIC_BASE_URL, anthropicVendor } from "./anthropic.ts";
import { ModelConfigError } from "./model-config-error.ts";
import { costUsdMicros, windowOf, type ModelPrice } from "./models.ts";
import { offlineModels } from "./offline/index.ts";
import { OPENAI_BASE_URL, openAiChatVendor, openAiResponsesVendor } from "./openai.ts";
import { OLLAMA_BASE_URL, openAiCompatibleVendor, type CompatibleServer } from "./openai-compatible.ts";
import type { Fetch, Vendor } from "./vendor.ts";
import { withoutKeys } from "./without-keys.ts";

export { ModelConfigError };

export interface ModelCatalogueOptions {
  /** Variables to read keys and base URLs from; none by default, so that a test cannot reach a vendor by accident. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** By provider; wins over the environment. */
  readonly baseUrls?: Readonly<Record<string, string>>;
  /** Keys by tenant, then by provider; win over the environment. */
  readonly keysByTenant?: Readonly<Record<string, Readonly<Record<string, string>>>>;
  /** Models by full name, made by the user: any package of the ecosystem, or a `Model`. */
  readonly models?: Readonly<Record<string, LanguageModelV4 | Model>>;
  /** OpenAI-compatible servers by the provider name to use for them. */
  readonly servers?: Readonly<Record<string, CompatibleServer>>;
  /** Context windows in tokens by full name. */
  readonly windows?: Readonly<Record<string, number>>;
  readonly prices?: Readonly<Record<string, ModelPrice>>;
  /** Makes models of the provider `offline`; by default those of src/providers/offline. */
  readonly offline?: (name: string) => Model;
  readonly loadMedia?: (file: Pick<FilePart, "sha256" | "media_type" | "size_bytes">, tenant: string) => Promise<Uint8Array | undefined>;
  readonly fetch?: Fetch;
}

type Opener = (model: string, tenant: string) => Vendor;

export function createModelCatalogue(options: ModelCatalogueOptions = {}): ModelCatalogue {
  const env = options.env ?? {};
  const prices = options.prices ?? {};
  const offline = options.offline ?? offlineModels({ env });
  const variable = (name: string) => (env[name] === undefined || env[name] === "" ? undefined : env[name]);
  const baseUrl = (provider: string, fallback: string, name: string) => checkedUrl(provider, options.baseUrls?.[provider] ?? variable(name) ?? fallback);
  const keyFor = (provider: string, tenant: string) => options.keysByTenant?.[tenant]?.[provider];
  const requireKey = (provider: string, tenant: string, name: string) => {
    const key = keyFor(provider, tenant) ?? variable(name);
    if (key !== undefined) return key;
    throw new ModelConfigError("MODEL_KEY_MISSING", `no API key for provider "${provider}": set ${name}, or give tenant "${tenant}" a key`, { provider, variable: name, tenant });
  };
  const openAi = (model: string, tenant: string) => ({
    model,
    apiKey: requireKey("openai", tenant, "OPENAI_API_KEY"),
    baseUrl: baseUrl("openai", OPENAI_BASE_URL, "OPENAI_BASE_URL"),
  });
  const compatible =
    (provider: string, server: CompatibleServer): Opener =>
    (model, tenant) => {
      const apiKey = keyFor(provider, tenant) ?? server.apiKey;
      return openAiCompatibleVendor({
        ...server,
        provider,
        model,
        baseUrl: checkedUrl(provider, options.baseUrls?.[provider] ?? server.baseUrl),
        ...(apiKey === undefined ? {} : { apiKey }),
      });
    };

  const openers = new Map<string, Opener>([
    [
      "anthropic",
      (model, tenant) =>
        anthropicVendor({
          model,
          apiKey: requireKey("anthropic", tenant, "ANTHROPIC_API_KEY"),
          baseUrl: baseUrl("anthropic", ANTHROPIC_BASE_URL, "ANTHROPIC_BASE_URL"),
        }),
    ],
    ["openai", (model, tenant) => openAiResponsesVendor(openAi(model, tenant))],
    ["openai-chat", (model, tenant) => openAiChatVendor(openAi(model, tenant))],
    ["ollama", compatible("ollama", { baseUrl: variable("OLLAMA_BASE_URL") ?? OLLAMA_BASE_URL })],
    ...Object.entries(options.servers ?? {}).map(([provider, server]) => [provider, compatible(provider, server)] as const),
  ]);
  const known = () => [...openers.keys(), "offline"];
  const keys = () =>
    [
      variable("OPENAI_API_KEY"),
      variable("ANTHROPIC_API_KEY"),
      ...Object.values(options.servers ?? {}).map(({ apiKey }) => apiKey),
      ...Object.values(options.keysByTenant ?? {}).flatMap((own) => Object.values(own)),
    ].filter((key) => key !== undefined);

  const open = (name: string, tenant: string): Model => {
    const window = windowOf(name, options.windows);
    const load = options.loadMedia;
    const loadMedia: { loadMedia?: MediaLoader } = load === undefined ? {} : { loadMedia: (file) => load(file, tenant) };
    const own = options.models !== undefined && Object.hasOwn(options.models, name) ? options.models[name] : undefined;
    if (own !== undefined) return "doStream" in own ? createForeignModel({ name, model: own, window, ...loadMedia }) : own;

    const colon = name.indexOf(":");
    const provider = colon < 0 ? "" : name.slice(0, colon);
    const model = name.slice(colon + 1);
    // They have no window of their own; one that is configured is believed.
    if (provider === "offline") return window.tokens === undefined ? offline(name) : { ...offline(name), window };
    const opener = openers.get(provider);
    if (opener === undefined || model === "") {
      const names = Object.keys(options.models ?? {});
      const also = names.length === 0 ? "" : `; models given by name: ${names.join(", ")}`;
      const what = colon < 0 ? `model "${name}" has no provider in front` : model === "" ? `"${name}" names no model` : `no provider "${provider}" for model "${name}"`;
      throw new ModelConfigError("MODEL_UNKNOWN", `${what}; write <provider>:<model> with one of: ${known().join(", ")}${also}`, {
        model: name,
        providers: known(),
        models: names,
      });
    }
    return withoutKeys(
      createVendorModel({
        name,
        vendor: opener(model, tenant),
        window,
        ...loadMedia,
        ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
      }),
      keys,
    );
  };

  return {
    // Opened anew each time: a model holds no connection, and tenants may be many.
    resolve: open,
    costUsdMicros: (name, usage) => costUsdMicros(name, usage, prices),
  };
}

function checkedUrl(provider: string, url: string): string {
  if (URL.canParse(url) && /^https?:/.test(url)) return url;
  throw new ModelConfigError("MODEL_CONFIG_INVALID", `base URL of provider "${provider}" is not an http(s) URL: ${url}`, { provider, url });
}
