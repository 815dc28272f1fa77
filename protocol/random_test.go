package protocol

import (
	"fmt"
	"math/rand/v2"
	"reflect"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wiregen"
)

var tagsType = reflect.TypeFor[kmsg.Tags]()

// mapAddress is the address function of the tests: longer and shorter hosts.
func mapAddress(id int32, host string, port int32) (string, int32, bool) {
	if id%7 == 0 {
		return "", 0, false
	}
	return fmt.Sprintf("proxy-%d", id%1000), 19100 + id%50, true
}

// mapStructs applies mapAddress to every broker in a kmsg message, by reflection.
func mapStructs(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			mapStructs(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			mapStructs(v.Index(i))
		}
	case reflect.Struct:
		if v.Type() == tagsType {
			return
		}
		id, host, port := v.FieldByName("NodeID"), v.FieldByName("Host"), v.FieldByName("Port")
		if id.IsValid() && host.IsValid() && port.IsValid() && id.Int() >= 0 && host.String() != "" {
			if h, p, ok := mapAddress(int32(id.Int()), host.String(), int32(port.Int())); ok {
				host.SetString(h)
				port.SetInt(int64(p))
			}
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				mapStructs(v.Field(i))
			}
		}
	}
}

// eachVersion calls fn with a random request and response of every key and
// reviewed version, n times.
func eachVersion(n int, fn func(a API, version int16, req kmsg.Request, resp kmsg.Response, rnd *rand.Rand)) {
	for _, a := range table {
		for version := int16(0); version <= a.Max; version++ {
			for i := range n {
				rnd := rand.New(rand.NewPCG(uint64(a.Key)<<16|uint64(version), uint64(i)))
				req := kmsg.RequestForKey(a.Key)
				req.SetVersion(version)
				resp := req.ResponseKind()
				wiregen.Fill(rnd, req, true)
				wiregen.Fill(rnd, resp, true)
				fn(a, version, req, resp, rnd)
			}
		}
	}
}
