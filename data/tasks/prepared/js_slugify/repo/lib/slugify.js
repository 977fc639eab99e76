"use strict";

const { WORDS } = require("./charmap");

/**
 * Turn a title into a slug.
 *
 * @param {string} text
 * @param {{separator?: string, lower?: boolean}} [options]
 * @returns {string}
 */
function slugify(text, { separator = "-", lower = true } = {}) {
  if (typeof text !== "string") {
    throw new TypeError(`text must be a string, got ${typeof text}`);
  }
  let spelled = "";
  for (const char of text) {
    spelled += WORDS.has(char) ? ` ${WORDS.get(char)} ` : char;
  }
  const slug = spelled
    .replace(/['\u2019]/g, "")
    .replace(/[^A-Za-z0-9]+/g, separator)
    .replace(new RegExp(`^${separator}+|${separator}+$`, "g"), "");
  return lower ? slug.toLowerCase() : slug;
}

module.exports = { slugify };
