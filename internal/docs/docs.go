// Package docs has no code of its own: its tests hold README.md, docs/ and
// deploy/ to what the code does.
package docs
