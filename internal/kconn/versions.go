package kconn

import (
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// ClientVersions are what our kgo clients speak: all of kgo's, but for
// ApiVersions. Brokers that don't know its newest version are asked twice on a new
// connection, one round trip for nothing. All from 2.4 on know the third, and
// nothing of the later ones is used.
//
// kgo.MaxVersions replaces what earlier options say: who caps more begins here.
func ClientVersions() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.ApiVersions), 3)
	return v
}
