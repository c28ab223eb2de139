// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// The JSON of a policy has the json tags of Policy as its members. Durations are
// strings ("100ms"), Off is "off" (false for a Switch), and a jitter is its name.

// MarshalJSON writes the fields of p that are set. It returns an error that
// names the field if GateKey, Classify or Idempotent is set, because functions
// have no JSON.
func (p Policy) MarshalJSON() ([]byte, error) {
	for field, set := range map[string]bool{"Classify": p.Classify != nil, "Idempotent": p.Idempotent != nil, "GateKey": p.GateKey != nil} {
		if set {
			return nil, fmt.Errorf("retrip: Policy.%s is a function: it can't be written as JSON", field)
		}
	}
	var b bytes.Buffer
	appendStruct(&b, reflect.ValueOf(p))
	return b.Bytes(), nil
}

func appendStruct(b *bytes.Buffer, v reflect.Value) {
	b.WriteByte('{')
	first := true
	for i := range v.NumField() {
		name, field := jsonName(v.Type().Field(i)), v.Field(i)
		// An empty slice is written if it isn't nil: it replaces the inherited one.
		if name == "" || field.IsZero() {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		fmt.Fprintf(b, "%q:", name)
		appendValue(b, field)
	}
	b.WriteByte('}')
}

func appendValue(b *bytes.Buffer, v reflect.Value) {
	switch value := v.Interface().(type) {
	case Backoff, Budget, Breaker:
		appendStruct(b, v)
	case Jitter:
		fmt.Fprintf(b, "%q", value.String())
	case Switch:
		fmt.Fprint(b, value == On)
	case time.Duration:
		if value == Off {
			b.WriteString(`"off"`)
		} else {
			fmt.Fprintf(b, "%q", value.String())
		}
	case int, int64, float64:
		if fmt.Sprint(value) == "-1" {
			b.WriteString(`"off"`)
		} else {
			fmt.Fprint(b, value)
		}
	default:
		// Strings and lists of numbers or strings can't fail.
		data, _ := json.Marshal(value)
		b.Write(data)
	}
}

func jsonName(f reflect.StructField) string {
	if name := f.Tag.Get("json"); name != "-" {
		return name
	}
	return ""
}
