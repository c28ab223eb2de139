// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

var outputs = []string{".svg", ".png", ".csv", ".md", ".json"}

// output is the destination file of a report. It is opened before the runs, so
// that minutes of simulation aren't lost to a missing folder. The file keeps
// its old content until the report is ready.
type output struct {
	file *os.File // nil if no file was requested
	made bool     // openOutput created the file
}

func openOutput(name string) (*output, error) {
	if name == "" {
		return &output{}, nil
	}
	_, err := os.Stat(name)
	made := errors.Is(err, fs.ErrNotExist)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return &output{file, made}, nil
}

// discard restores the state before openOutput.
func (o *output) discard() {
	if o.file == nil {
		return
	}
	o.file.Close()
	if o.made {
		os.Remove(o.file.Name())
	}
}

// write writes r in the format of the file's extension.
func (o *output) write(r *report, onDark bool) error {
	var b bytes.Buffer
	if err := r.encode(&b, filepath.Ext(o.file.Name()), onDark); err != nil {
		o.discard()
		return err
	}
	err := o.file.Truncate(0)
	if err == nil {
		_, err = o.file.Write(b.Bytes())
	}
	return errors.Join(err, o.file.Close())
}

func (r *report) encode(w io.Writer, ext string, onDark bool) error {
	switch ext {
	case ".json":
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(map[string]any{"title": r.title, "partial": r.partial, "results": r.json})
	case ".csv":
		return r.csv(w)
	case ".md":
		return r.writeMarkdown(w)
	}
	t := light
	if onDark {
		t = dark
	}
	f, err := r.draw(t)
	if err != nil {
		return err
	}
	if r.partial {
		f.title += " (partial)"
	}
	return f.write(w, ext)
}
