/** Peers are imported by name at run time: the repository's own type check must not need them installed. */
export async function loadPeer<Module>(name: string): Promise<Module> {
  return (await import(name)) as Module;
}
