// SPDX-License-Identifier: Apache-2.0
// Type-checks the same program again and again in one process: its types, and the library of TypeScript.
const fs = require("fs");
const [path, warmUp, times] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const ts = require(path);

// Sources that use much of the language, so that the checker has something to infer.
const source = (n) => `
  type Shape${n} = { kind: "circle"; radius: number } | { kind: "square"; side: number; tags?: string[] };
  class Store${n}<K extends string, V> {
    private readonly all = new Map<K, V[]>();
    add(key: K, ...values: V[]): this { this.all.set(key, [...(this.all.get(key) ?? []), ...values]); return this; }
    map<W>(change: (value: V, key: K) => W): Store${n}<K, W> {
      const next = new Store${n}<K, W>();
      for (const [key, values] of this.all) next.add(key, ...values.map((value) => change(value, key)));
      return next;
    }
  }
  const area${n} = (shape: Shape${n}) => shape.kind === "circle" ? Math.PI * shape.radius ** 2 : shape.side ** 2;
  async function sum${n}(shapes: Promise<Shape${n}>[]) {
    const done = await Promise.all(shapes);
    return done.filter((shape) => shape.kind === "square").map(area${n}).reduce((a, b) => a + b, ${n});
  }
  const store${n} = new Store${n}<"a" | "b", Shape${n}>().add("a", { kind: "square", side: ${n} });
  const wrong${n}: Store${n}<"a" | "b", string> = store${n}.map((shape, key) => ({ key, area: area${n}(shape) }));
`;

const SOURCES = 60;

function check() {
  const options = { target: ts.ScriptTarget.ES2021, noEmit: true, strict: true };
  const host = ts.createCompilerHost(options);
  const text = Array.from({ length: SOURCES }, (_, n) => source(n)).join("");
  const open = host.getSourceFile;
  host.getSourceFile = (name, ...more) =>
    name === "a.ts" ? ts.createSourceFile(name, text, ts.ScriptTarget.ES2021) : open.call(host, name, ...more);
  const program = ts.createProgram(["a.ts"], options, host);
  const found = ts.getPreEmitDiagnostics(program);
  return [program.getNodeCount(), program.getTypeCount(), found.length].join(" ");
}

let last;
const repeat = (times) => {
  for (let i = 0; i < times; i++) last = check();
};
repeat(warmUp);
console.log("ready");
fs.readSync(0, Buffer.alloc(1));
repeat(times);
console.log(last);
fs.readSync(0, Buffer.alloc(1));
