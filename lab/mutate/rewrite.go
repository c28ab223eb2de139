// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
)

// mutant is one change to the code.
type mutant struct {
	id      int
	at      string // file, line and column
	what    string
	tests   []*test // that reach it
	noticed bool
}

// prepare writes the mutated files of the packages that match patterns into dir,
// and the overlay that substitutes them for the original files.
func prepare(dir string, patterns []string) ([]*mutant, error) {
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax}, patterns...)
	if err != nil {
		return nil, err
	}
	if packages.PrintErrors(loaded) > 0 {
		return nil, errors.New("nothing to mutate")
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	put := func(name string, text []byte) error {
		overlay.Replace[name] = filepath.Join(dir, fmt.Sprint(len(overlay.Replace), ".go"))
		return os.WriteFile(overlay.Replace[name], text, 0o600)
	}
	r := &rewriter{root: root + string(filepath.Separator)}
	for _, r.Package = range loaded {
		for i, name := range r.CompiledGoFiles {
			if r.source, err = os.ReadFile(name); err != nil {
				return nil, err
			}
			if err := put(name, r.rewrite(r.Syntax[i])); err != nil {
				return nil, err
			}
		}
		if err := put(filepath.Join(r.Dir, "mutants.go"), fmt.Appendf(nil, switches, r.Name, len(r.mutants)+1)); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return nil, err
	}
	return r.mutants, os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600)
}

// prefix is that of the environment variables that the mutated code reads.
const prefix = "RETRIP_MUTATE_"

// switches is the code that the mutated files call: %s is the name of their
// package, and %d is more than the number of any mutant in it.
const switches = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var (
	mutantOn, _       = strconv.Atoi(os.Getenv("` + prefix + `MUTANT"))
	mutantsReached, _ = os.OpenFile(os.Getenv("` + prefix + `REACHED"), os.O_APPEND|os.O_WRONLY, 0)
	mutantSeen        [%d]atomic.Bool
)

func mutant(id int) bool {
	if mutantsReached != nil && !mutantSeen[id].Swap(true) {
		mutantsReached.WriteString(strconv.Itoa(id) + "\n")
	}
	return mutantOn == id
}

// mutantPick is not inlined: what follows from the real value must not be
// known to the compiler.
//
//go:noinline
func mutantPick[T any](id int, real, other T) T {
	if mutant(id) {
		return other
	}
	return real
}
`

// rewriter puts mutants into files.
type rewriter struct {
	root    string // the directory that names of files are relative to
	mutants []*mutant

	// What is being mutated:
	*packages.Package
	file          *ast.File
	source        []byte
	before, after map[int]string // what to insert at an offset, before and after nodes
}

// rewrite returns the text of a file with all its mutants.
func (r *rewriter) rewrite(file *ast.File) (text []byte) {
	r.file, r.before, r.after = file, map[int]string{}, map[int]string{}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil && f.Name.Name != "String" {
			r.walk(f.Body, f.Type)
		}
	}
	for i, c := range r.source {
		text = append(text, r.after[i]+r.before[i]...)
		text = append(text, c)
	}
	return text
}

func (r *rewriter) offset(p token.Pos) int { return r.Fset.Position(p).Offset }

func (r *rewriter) raw(n ast.Node) string {
	return string(r.source[r.offset(n.Pos()):r.offset(n.End())])
}

// around inserts text before and after a node. Nodes come before those that
// they contain.
func (r *rewriter) around(n ast.Node, before, after string) {
	r.before[r.offset(n.Pos())] += before
	r.after[r.offset(n.End())] = after + r.after[r.offset(n.End())]
}

// new gives a mutant its number.
func (r *rewriter) new(n ast.Node, what string) int {
	at := strings.TrimPrefix(r.Fset.Position(n.Pos()).String(), r.root)
	m := &mutant{id: len(r.mutants) + 1, at: at, what: strings.Join(strings.Fields(what), " ")}
	r.mutants = append(r.mutants, m)
	return m.id
}

// walk makes the mutants in a node of a function's body.
func (r *rewriter) walk(n ast.Node, in *ast.FuncType) {
	ast.Inspect(n, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			switch value := r.TypesInfo.Types[e]; {
			case value.IsType() || value.IsBuiltin():
				return false
			case value.Value != nil:
				r.constant(e, value)
				return false
			}
		}
		switch n := n.(type) {
		case *ast.FuncLit:
			r.walk(n.Body, n.Type)
			return false
		case *ast.GenDecl:
			return n.Tok == token.VAR
		case *ast.KeyValueExpr:
			r.walk(n.Value, in)
			return false
		case *ast.BinaryExpr:
			r.binary(n)
		case *ast.IfStmt:
			r.negate(n.Cond)
		case *ast.CaseClause:
			for _, e := range n.List {
				r.negate(e)
			}
			r.omit(n.Body)
		case *ast.BlockStmt:
			r.omit(n.List)
		case *ast.CommClause:
			r.omit(n.Body)
		case *ast.ReturnStmt:
			r.returned(n, in.Results)
		}
		return true
	})
}

// constant replaces a number by another one.
func (r *rewriter) constant(e ast.Expr, value types.TypeAndValue) {
	basic, ok := value.Type.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsNumeric == 0 || basic.Info()&types.IsUntyped != 0 {
		return
	}
	other := fmt.Sprintf("(%s)+1", r.raw(e))
	if f, _ := constant.Float64Val(constant.ToFloat(value.Value)); f > 100 {
		other = fmt.Sprintf("(%s)-1", r.raw(e))
	}
	hidden := false
	name := types.TypeString(value.Type, func(p *types.Package) string {
		if p == r.Types {
			hidden = hidden || r.shadowed(e, value.Type)
			return ""
		}
		hidden = hidden || !slices.ContainsFunc(r.file.Imports, func(s *ast.ImportSpec) bool {
			return s.Name == nil && s.Path.Value == strconv.Quote(p.Path())
		})
		return p.Name()
	})
	if !hidden {
		r.around(e, fmt.Sprintf("mutantPick[%s](%d, ", name, r.new(e, r.raw(e)+" -> "+other)), ", "+other+")")
	}
}

// shadowed reports whether the name of a type of this package means something else at e.
func (r *rewriter) shadowed(e ast.Expr, t types.Type) bool {
	named, ok := t.(*types.Named)
	if !ok {
		return false
	}
	scope := r.Types.Scope().Innermost(e.Pos())
	if scope == nil {
		return false
	}
	_, found := scope.LookupParent(named.Obj().Name(), e.Pos())
	return found != named.Obj()
}

var swapped = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD, token.QUO: token.MUL, token.REM: token.MUL,
	token.SHL: token.SHR, token.SHR: token.SHL, token.AND: token.OR, token.OR: token.AND,
}

// binary leaves out an operand, or replaces the operator.
func (r *rewriter) binary(n *ast.BinaryExpr) {
	switch n.Op {
	case token.LAND:
		r.around(n.X, fmt.Sprintf("(mutant(%d) || (", r.new(n.X, r.raw(n.X)+" && …: without it")), "))")
		r.around(n.Y, fmt.Sprintf("(mutant(%d) || (", r.new(n.Y, "… && "+r.raw(n.Y)+": without it")), "))")
		return
	case token.LOR:
		r.around(n.X, fmt.Sprintf("(!mutant(%d) && (", r.new(n.X, r.raw(n.X)+" || …: without it")), "))")
		r.around(n.Y, fmt.Sprintf("(!mutant(%d) && (", r.new(n.Y, "… || "+r.raw(n.Y)+": without it")), "))")
		return
	}
	op, ok := swapped[n.Op]
	if !ok {
		return
	}
	other := fmt.Sprintf("(%s) %s (%s)", r.raw(n.X), op, r.raw(n.Y))
	number, _ := r.TypesInfo.Types[n].Type.Underlying().(*types.Basic)
	switch {
	case r.isBool(n):
		id := r.new(n, r.raw(n)+" -> "+op.String())
		r.around(n, fmt.Sprintf("(mutant(%d) && %s || !mutant(%[1]d) && (", id, other), "))")
	case number != nil && number.Info()&types.IsNumeric != 0 && !r.calls(n): // mutantPick would call twice
		r.around(n, fmt.Sprintf("mutantPick(%d, ", r.new(n, r.raw(n)+" -> "+op.String())), ", "+other+")")
	}
}

func (r *rewriter) isBool(e ast.Expr) bool {
	basic, ok := r.TypesInfo.Types[e].Type.(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

// calls reports whether n calls a function, which may do more than to return a
// value.
func (r *rewriter) calls(n ast.Node) (any bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			f := r.TypesInfo.Types[call.Fun]
			any = any || !f.IsType() && !f.IsBuiltin()
		}
		return !any
	})
	return any
}

// negate negates a condition that isn't a comparison.
func (r *rewriter) negate(e ast.Expr) {
	if _, binary := e.(*ast.BinaryExpr); !binary && r.isBool(e) && r.TypesInfo.Types[e].Value == nil {
		r.around(e, fmt.Sprintf("mutant(%d) != (", r.new(e, r.raw(e)+": negated")), ")")
	}
}

// returned replaces returned values by the opposite, or by zeros.
func (r *rewriter) returned(n *ast.ReturnStmt, results *ast.FieldList) {
	if len(n.Results) == 1 && r.isBool(n.Results[0]) {
		r.around(n.Results[0], fmt.Sprintf("mutant(%d) != (", r.new(n, r.raw(n)+": negated")), ")")
		return
	}
	if !slices.ContainsFunc(n.Results, func(e ast.Expr) bool { return !isZero(r.raw(e)) }) {
		return
	}
	var zeros []string
	for _, field := range results.List {
		for range max(1, len(field.Names)) {
			zeros = append(zeros, "*new("+r.raw(field.Type)+")")
		}
	}
	r.around(n, fmt.Sprintf("if mutant(%d) { return %s }; ", r.new(n, r.raw(n)+": zeros"), strings.Join(zeros, ", ")), "")
}

func isZero(text string) bool {
	return text == "nil" || text == "0" || text == "false" || text == `""` || strings.HasSuffix(text, "{}")
}

// omit leaves out statements.
func (r *rewriter) omit(list []ast.Stmt) {
	for _, n := range list {
		text := r.raw(n)
		switch s := n.(type) {
		case *ast.ExprStmt:
			// A test without an unlock or an end would only hang.
			if strings.Contains(text, "Lock()") || strings.HasPrefix(text, "panic(") {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.IncDecStmt:
		default:
			continue
		}
		r.around(n, fmt.Sprintf("if !mutant(%d) { ", r.new(n, text+": left out")), " }")
	}
}
