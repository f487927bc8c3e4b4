/** How a person starts a command of ours from here. In a checkout the command is not installed, and npx would look for it elsewhere. */
export const invocation = import.meta.url.endsWith(".ts") ? "npm run -s capstan --" : "npx capstan";
