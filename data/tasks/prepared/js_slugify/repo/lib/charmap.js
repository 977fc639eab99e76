"use strict";

// Characters that are read out as a word of their own.
const WORDS = new Map([
  ["&", "and"],
  ["@", "at"],
  ["%", "percent"],
]);

module.exports = { WORDS };
