package protocol

import (
	"fmt"
	"math/rand/v2"
	"reflect"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// fillRandom fills every field of a kmsg message with random content, unknown
// tagged fields in every struct that can have them included.
func fillRandom(rnd *rand.Rand, m any, tags bool) {
	fillValue(rnd, reflect.ValueOf(m).Elem(), "", tags)
}

var tagsType = reflect.TypeFor[kmsg.Tags]()

func fillValue(rnd *rand.Rand, v reflect.Value, name string, tags bool) {
	if v.Type() == tagsType {
		if tags {
			t := v.Addr().Interface().(*kmsg.Tags)
			for range rnd.IntN(3) {
				t.Set(uint32(90+rnd.IntN(300)), randomBytes(rnd, 200))
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rnd.IntN(2) == 0)
	case reflect.Int8:
		v.SetInt(int64(int8(rnd.Uint32())))
	case reflect.Int16:
		v.SetInt(int64(int16(rnd.Uint32())))
	case reflect.Int32:
		v.SetInt(int64(int32(rnd.Uint32())))
	case reflect.Int64:
		v.SetInt(int64(rnd.Uint64()))
	case reflect.Uint16:
		v.SetUint(uint64(uint16(rnd.Uint32())))
	case reflect.Float64:
		v.SetFloat(rnd.Float64())
	case reflect.String:
		if name == "Host" && rnd.IntN(5) == 0 {
			return
		}
		v.SetString(fmt.Sprintf("%s-%x", name, randomBytes(rnd, 12)))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(randomBytes(rnd, 300))
			return
		}
		n := rnd.IntN(4)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fillValue(rnd, v.Index(i), name, tags)
		}
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64(rnd.Uint32() & 0xff))
		}
	case reflect.Pointer:
		if rnd.IntN(3) == 0 {
			v.SetZero()
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(rnd, v.Elem(), name, tags)
	case reflect.Struct:
		if d, ok := v.Addr().Interface().(interface{ Default() }); ok {
			d.Default()
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Name != "Version" {
				fillValue(rnd, v.Field(i), f.Name, tags)
			}
		}
	default:
		panic("fillValue: " + v.Kind().String())
	}
}

func randomBytes(rnd *rand.Rand, limit int) []byte {
	b := make([]byte, 1+rnd.IntN(limit))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

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
				fillRandom(rnd, req, true)
				fillRandom(rnd, resp, true)
				fn(a, version, req, resp, rnd)
			}
		}
	}
}
