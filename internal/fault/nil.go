// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"reflect"
)

// NilPointer replaces an error that is, or wraps, a nil pointer, because most
// methods of such a pointer would panic.
type NilPointer struct{ Err, pointer error }

func (e NilPointer) Error() string { return fmt.Sprintf("a nil %T", e.pointer) }

// Usable returns err, or a NilPointer in place of err.
func Usable(err error) error {
	if pointer := nilPointerIn(err); pointer != nil {
		return NilPointer{err, pointer}
	}
	return err
}

// nilPointerIn returns an error in the tree of err that is a nil pointer, or nil
// if there is none.
func nilPointerIn(err error) error {
	for err != nil {
		if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
			return err
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range joined.Unwrap() {
				if pointer := nilPointerIn(err); pointer != nil {
					return pointer
				}
			}
			return nil
		}
		err = errors.Unwrap(err)
	}
	return nil
}
