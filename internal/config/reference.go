package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference is docs/config.md: every key, its default and what it does, made
// from the types so that it can't differ from the code.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# Configuration reference

Generated from the code by ` + "`make docs`" + `; a test fails when it differs. One YAML file, given with ` + "`--config`" + `.
It is strict: an unknown key, a bad value or a missing file ends the start with an error that names line, key and remedy.
Sizes: a number of bytes, or with KiB, MiB, GiB. Times: 500ms, 10s, 5m, 1h.

| key | default | what it does |
|---|---|---|
`)
	def := Default()
	rows(&b, "", reflect.ValueOf(def))
	return b.String()
}

func rows(b *strings.Builder, prefix string, v reflect.Value) {
	t := v.Type()
	for i := range t.NumField() {
		f, fv := t.Field(i), v.Field(i)
		if !f.IsExported() {
			continue
		}
		key := prefix + f.Tag.Get("yaml")
		def := ""
		switch {
		case f.Type.Kind() == reflect.Struct:
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			key += "[]"
		default:
			def = show(fv)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", key, def, f.Tag.Get("doc"))
		switch {
		case f.Type == reflect.TypeFor[PortRange]():
		case f.Type.Kind() == reflect.Struct:
			rows(b, key+".", fv)
		case f.Type.Kind() == reflect.Slice && f.Type.Elem() == reflect.TypeFor[Mirror]():
			rows(b, key+".", reflect.ValueOf(DefaultMirror()))
		case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
			rows(b, key+".", reflect.Zero(f.Type.Elem()))
		}
	}
}

func show(v reflect.Value) string {
	if s, ok := v.Interface().([]string); ok {
		if len(s) == 0 {
			return "(none)"
		}
		return "`[\"" + strings.Join(s, "\", \"") + "\"]`"
	}
	s := fmt.Sprint(v.Interface())
	if s == "" || v.Kind() == reflect.Map && v.Len() == 0 {
		return "(none)"
	}
	return "`" + s + "`"
}
