// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
)

// sum returns a hash of values and of all that they point to. Addresses don't count,
// only which pointers are equal. Half of a SHA-256 is enough: of 100 million states,
// two have the same with a probability below 10⁻²².
func sum(values []any) [16]byte {
	w := writer{out: make([]byte, 0, 1024), seen: map[target]uint64{}}
	for _, v := range values {
		w.write(reflect.ValueOf(v))
	}
	hash := sha256.Sum256(w.out)
	return [16]byte(hash[:])
}

type writer struct {
	out  []byte
	seen map[target]uint64 // numbers of the pointers met
}

// target is where a pointer points. A struct and its first field have one address.
type target struct {
	address uintptr
	kind    reflect.Type
}

func (w *writer) number(n uint64) { w.out = binary.AppendUvarint(w.out, n) }

func (w *writer) write(v reflect.Value) {
	switch v.Kind() {
	case reflect.Invalid: // an interface that is nil
		w.number(0)
	case reflect.Bool:
		if v.Bool() {
			w.number(1)
		} else {
			w.number(0)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		w.out = binary.AppendVarint(w.out, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		w.number(v.Uint())
	case reflect.Float64:
		w.number(math.Float64bits(v.Float()))
	case reflect.String:
		w.number(uint64(v.Len()))
		w.out = append(w.out, v.String()...)
	case reflect.Struct:
		n := v.NumField() // Fields allocates
		for i := range n {
			w.write(v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		w.number(uint64(v.Len()))
		for i := range v.Len() {
			w.write(v.Index(i))
		}
	case reflect.Map:
		w.entries(v)
	case reflect.Interface:
		w.write(v.Elem())
	case reflect.Pointer:
		w.pointer(v)
	case reflect.Chan, reflect.Func:
		w.number(1)
		if v.IsNil() {
			w.number(0)
		}
	default:
		panic("explore: a state with a " + v.Kind().String())
	}
}

func (w *writer) pointer(v reflect.Value) {
	if v.IsNil() {
		w.number(0)
		return
	}
	to := target{v.Pointer(), v.Type()}
	n, met := w.seen[to]
	if !met {
		n = uint64(len(w.seen) + 1)
		w.seen[to] = n
	}
	w.number(n)
	if !met {
		w.write(v.Elem())
	}
}

// entries writes a map in an order that depends only on its keys, which must not
// hold pointers.
func (w *writer) entries(v reflect.Value) {
	type entry struct {
		key   []byte
		value reflect.Value
	}
	var all []entry
	for key, value := range v.Seq2() {
		k := writer{}
		k.write(key)
		all = append(all, entry{k.out, value})
	}
	slices.SortFunc(all, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	w.number(uint64(len(all)))
	for _, e := range all {
		w.out = append(w.out, e.key...)
		w.write(e.value)
	}
}
