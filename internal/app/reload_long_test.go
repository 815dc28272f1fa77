//go:build long

package app

import "testing"

// MM-03, all of it.
func TestThousandReloads(t *testing.T) { reloads(t, 1000) }
