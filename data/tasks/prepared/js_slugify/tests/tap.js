"use strict";

// A few lines of TAP: test(name, body) runs at once, finish() prints the plan and sets the exit code.

let count = 0;
let failed = 0;

function test(name, body) {
  count += 1;
  try {
    body();
    console.log(`ok ${count} - ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`not ok ${count} - ${name}`);
    console.log(String(error && error.message).replace(/^/gm, "# "));
  }
}

function finish() {
  console.log(`1..${count}`);
  process.exitCode = failed === 0 ? 0 : 1;
}

module.exports = { finish, test };
