package main

import (
	"fmt"
	"strings"

	"github.com/lockstep-kafka/lockstep/protocol"
)

// apis is docs/apis.md: protocol's table.
func apis() string {
	var b strings.Builder
	b.WriteString(`# APIs

Generated from ` + "`protocol/table.go`" + ` by ` + "`make docs`" + `; a test fails when it differs. What Lockstep shows in ApiVersions is
what both the broker speaks and this table names; newer keys and versions are left out until they were reviewed for
addresses, offsets and leader epochs, so that clients never use them.

Touched: A – addresses of brokers are the proxy's; O – offsets, E – leader epochs of mirror topics are translated;
H – may be answered by Lockstep, asking the broker as the client; R – may be refused on mirror topics. An API without
a letter passes byte for byte, and so does each API for what is no mirror topic, but for addresses.

| key | API | versions | touched | why | offsets and leader epochs of mirror topics |
|---|---|---|---|---|---|
`)
	for _, a := range protocol.APIs() {
		versions := fmt.Sprintf("%d–%d", a.Min, a.Max)
		if a.Min == a.Max {
			versions = fmt.Sprint(a.Min)
		}
		if !a.Advertised() {
			versions = "not offered"
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s |\n", a.Key, a.Name, versions, letters(a), a.Why, a.Offsets)
	}
	return b.String()
}

func letters(a protocol.API) string {
	var out []string
	for _, l := range []struct {
		t protocol.Touch
		s string
	}{
		{protocol.TouchAddresses, "A"},
		{protocol.TouchOffsets, "O"},
		{protocol.TouchEpochs, "E"},
		{protocol.TouchHandled, "H"},
		{protocol.TouchRefused, "R"},
	} {
		if a.Has(l.t) {
			out = append(out, l.s)
		}
	}
	return strings.Join(out, " ")
}
