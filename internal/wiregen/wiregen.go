// Package wiregen makes random Kafka messages for tests.
package wiregen

import (
	"fmt"
	"math/rand/v2"
	"reflect"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var tagsType = reflect.TypeFor[kmsg.Tags]()

// Fill fills every field of a kmsg message (a pointer to one) with random
// content: arrays and strings that are empty, null where the message has a null,
// or not; and with tags unknown tagged fields in every struct that can have them.
func Fill(rnd *rand.Rand, m any, tags bool) {
	fillValue(rnd, reflect.ValueOf(m).Elem(), "", tags)
}

func fillValue(rnd *rand.Rand, v reflect.Value, name string, tags bool) {
	if v.Type() == tagsType {
		if tags {
			t := v.Addr().Interface().(*kmsg.Tags)
			for range rnd.IntN(3) {
				t.Set(uint32(90+rnd.IntN(300)), Bytes(rnd, 200))
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
		if name != "Host" && rnd.IntN(8) == 0 {
			v.SetString("")
			return
		}
		v.SetString(fmt.Sprintf("%s-%x", name, Bytes(rnd, 12)))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			switch rnd.IntN(8) {
			case 0:
				v.SetBytes(nil)
			case 1:
				v.SetBytes([]byte{})
			default:
				v.SetBytes(Bytes(rnd, 300))
			}
			return
		}
		n := rnd.IntN(5) - 1
		if n < 0 { // null, or empty where the message has no null
			v.SetZero()
			return
		}
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

// Bytes are 1 to limit random bytes.
func Bytes(rnd *rand.Rand, limit int) []byte {
	b := make([]byte, 1+rnd.IntN(limit))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}
