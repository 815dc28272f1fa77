//go:build long

package mirror

import "testing"

// OT-19, GR-01, GR-03 in full size.
func TestTenThousandGroups(t *testing.T) { testManyGroups(t, 10_000) }
