"use strict";

const { slugify } = require("./lib/slugify");

module.exports = { slugify };
