"use strict";

const assert = require("node:assert/strict");
const { slugify } = require("..");
const { finish, test } = require("./tap");

test("words are joined by the separator", () => {
  assert.equal(slugify("Hello, World!"), "hello-world");
  assert.equal(slugify("Hello World", { separator: "_" }), "hello_world");
});

test("case can be kept", () => {
  assert.equal(slugify("Hello World", { lower: false }), "Hello-World");
});

test("some characters are words", () => {
  assert.equal(slugify("Salt & Pepper"), "salt-and-pepper");
  assert.equal(slugify("R&D"), "r-and-d");
});

test("apostrophes vanish", () => {
  assert.equal(slugify("Don't panic"), "dont-panic");
});

test("text must be a string", () => {
  assert.throws(() => slugify(42), TypeError);
});

finish();
