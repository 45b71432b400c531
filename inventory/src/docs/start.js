"use strict";

// Nothing is sent to anybody else: without an address the reader asks no validator.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  validatorUrl: null,
});
