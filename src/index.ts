/** The package's public face. */
export { agent, type Agent, type AgentSpec, type AgentLimitsSpec, type CallSettingsSpec, type ClaimCheckSpec } from "./agents/agent.ts";
export { tool, type Tool, type ToolSpec } from "./agents/tool.ts";
export { ConfigError } from "./agents/config-error.ts";
export type { ToolContext } from "./engine/code.ts";
export { CapstanError } from "./domain/error.ts";
export { DEFAULT_STATE_GROWTH_WARN_BYTES } from "./domain/growth.ts";
export { createCapstan, type Capstan, type CapstanOptions } from "./main.ts";
