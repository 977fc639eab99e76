"use strict";

const assert = require("node:assert/strict");
const slugs = require("..");
const { finish, test } = require("./tap");

const { slugify, createSlugger } = slugs;

test("words are joined by the separator", () => {
  assert.equal(slugify("Hello, World!"), "hello-world");
  assert.equal(slugify("  a -- b__c  "), "a-b-c");
  assert.equal(slugify("Hello World", { separator: "_" }), "hello_world");
});

test("case can be kept", () => {
  assert.equal(slugify("Hello World", { lower: false }), "Hello-World");
});

test("some characters are words", () => {
  assert.equal(slugify("Salt & Pepper"), "salt-and-pepper");
  assert.equal(slugify("R&D"), "r-and-d");
  assert.equal(slugify("100% me@home"), "100-percent-me-at-home");
});

test("apostrophes vanish", () => {
  assert.equal(slugify("Don't panic"), "dont-panic");
  assert.equal(slugify("Don\u2019t panic"), "dont-panic");
});

test("text must be a string", () => {
  for (const text of [42, null, undefined, ["a"]]) {
    assert.throws(() => slugify(text), TypeError);
  }
});

test("text without letters gives an empty slug", () => {
  assert.equal(slugify(""), "");
  assert.equal(slugify("?! ..."), "");
});

test("accents are removed", () => {
  assert.equal(slugify("Crème brûlée"), "creme-brulee");
  assert.equal(slugify("Ångström"), "angstrom");
  assert.equal(slugify("Tiếng Việt"), "tieng-viet");
});

test("decomposed text gives the same slug", () => {
  assert.equal(slugify("Crème brûlée".normalize("NFD")), "creme-brulee");
});

test("letters without a decomposition are replaced", () => {
  assert.equal(slugify("Straße"), "strasse");
  assert.equal(slugify("æ œ ø đ ð þ ł ı"), "ae-oe-o-d-d-th-l-i");
  assert.equal(slugify("STRA\u1e9eE Æ Œ Ø Đ Ð Þ Ł"), "strasse-ae-oe-o-d-d-th-l");
  assert.equal(slugify("Łódź"), "lodz");
});

test("replaced letters keep their case", () => {
  assert.equal(slugify("Æsir Øre Þor Straße", { lower: false }), "AEsir-Ore-THor-Strasse");
});

test("other scripts are separators", () => {
  assert.equal(slugify("a\u65e5\u672cb \u{1f600} c"), "a-b-c");
});

test("a separator may be a special character", () => {
  assert.equal(slugify(" a b! ", { separator: "." }), "a.b");
  assert.equal(slugify("a b", { separator: "$&" }), "a$&b");
  assert.equal(slugify("a b", { separator: "[" }), "a[b");
  assert.equal(slugify("a b", { separator: "\\" }), "a\\b");
});

test("a separator may be long or empty", () => {
  assert.equal(slugify("-a b-", { separator: "--" }), "a--b");
  assert.equal(slugify("a, b", { separator: "" }), "ab");
});

test("a separator of letters eats no letters", () => {
  assert.equal(slugify("x axes x", { separator: "x" }), "xxaxesxx");
});

test("maxLength cuts between words", () => {
  assert.equal(slugify("one two three", { maxLength: 10 }), "one-two");
  assert.equal(slugify("one two three", { maxLength: 7 }), "one-two");
  assert.equal(slugify("one two three", { maxLength: 6 }), "one");
  assert.equal(slugify("one two three", { maxLength: 13 }), "one-two-three");
  assert.equal(slugify("one two three", { maxLength: 12, separator: "--" }), "one--two");
});

test("maxLength cuts a first word that is too long", () => {
  assert.equal(slugify("one two", { maxLength: 2 }), "on");
  assert.equal(slugify("ßa", { maxLength: 1 }), "s");
});

test("maxLength must be a positive integer", () => {
  for (const maxLength of [0, -1, 1.5, NaN, "5", null]) {
    assert.throws(() => slugify("a", { maxLength }), RangeError);
  }
});

test("a slugger numbers what it has seen", () => {
  const slug = createSlugger();
  assert.deepEqual(["About", "about", "ABOUT!"].map((title) => slug(title)), ["about", "about-2", "about-3"]);
});

test("a slugger skips slugs that are taken", () => {
  const slug = createSlugger();
  const titles = ["About 2", "About", "About", "About 2"];
  assert.deepEqual(titles.map((title) => slug(title)), ["about-2", "about", "about-3", "about-2-2"]);
});

test("a slugger passes its options on", () => {
  const slug = createSlugger({ separator: "_", lower: false });
  assert.deepEqual([slug("My Page"), slug("My Page"), slug("my page")], ["My_Page", "My_Page_2", "my_page"]);
});

test("a slugger with an empty separator", () => {
  const slug = createSlugger({ separator: "" });
  assert.deepEqual([slug("a"), slug("a"), slug("a 2")], ["a", "a2", "a22"]);
});

test("a slugger stays within maxLength", () => {
  const slug = createSlugger({ maxLength: 8 });
  assert.deepEqual([slug("about us"), slug("about us"), slug("about us")], ["about-us", "about-2", "about-3"]);
  const long = createSlugger({ maxLength: 4 });
  const made = Array.from({ length: 12 }, () => long("abcdef"));
  assert.deepEqual(made.slice(0, 3), ["abcd", "ab-2", "ab-3"]);
  assert.deepEqual(made.slice(8), ["ab-9", "a-10", "a-11", "a-12"]);
});

test("a slugger names what has no letters", () => {
  const slug = createSlugger();
  assert.deepEqual([slug("?"), slug(""), slug("Untitled")], ["untitled", "untitled-2", "untitled-3"]);
  assert.equal(createSlugger({ maxLength: 4 })("?"), "unti");
});

test("a slugger says when no number is free", () => {
  const slug = createSlugger({ maxLength: 1 });
  assert.equal(slug("abc"), "a");
  assert.throws(() => slug("abc"), RangeError);
});

test("sluggers know nothing of each other", () => {
  assert.equal(createSlugger()("a"), "a");
  assert.equal(createSlugger()("a"), "a");
});

test("names like object properties are nothing special", () => {
  const slug = createSlugger({ lower: false });
  assert.deepEqual([slug("constructor"), slug("constructor")], ["constructor", "constructor-2"]);
});

finish();
