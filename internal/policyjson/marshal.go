// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package policyjson

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
)

// Marshal returns the fields of a struct that are set. It refuses functions,
// because JSON would silently lose them.
func Marshal(from any) ([]byte, error) {
	v := reflect.ValueOf(from)
	return appendStruct(nil, v, v.Type().Name())
}

func appendStruct(b []byte, v reflect.Value, path string) ([]byte, error) {
	b = append(b, '{')
	for field, value := range v.Fields() {
		// An empty slice is written if it isn't nil: it replaces the inherited one.
		if value.IsZero() {
			continue
		}
		path := path + "." + field.Name
		if value.Kind() == reflect.Func {
			return nil, fmt.Errorf("retrip: %s is a function: it can't be written as JSON", path)
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "%q:", field.Tag.Get("json"))
		if value.Kind() != reflect.Struct {
			b = appendValue(b, value)
			continue
		}
		var err error
		if b, err = appendStruct(b, value, path); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendValue(b []byte, v reflect.Value) []byte {
	switch {
	case v.Kind() == reflect.Int8:
		return strconv.AppendBool(b, v.Int() == 1)
	case v.CanInt() && v.Int() == off, v.CanFloat() && v.Float() == off:
		return append(b, `"off"`...)
	case v.CanFloat():
		return fmt.Append(b, v.Float())
	}
	if word, ok := v.Interface().(fmt.Stringer); ok { // a duration, or one of several words
		return fmt.Appendf(b, "%q", word)
	}
	// Integers, strings and lists of them can't fail.
	data, _ := json.Marshal(v.Interface())
	return append(b, data...)
}
